"""Run small scripts by themselves and under watch, each in a fork of one process that has torch.

`python script_runner.py FOLDER` runs each FOLDER/NAME.py in FOLDER/{plain,watched}/NAME: what it
prints is left there as `stdout` and `stderr`, its exit code as `code`, beside its own files.
"""

import gc
import os
import runpy
import signal
import sys
from pathlib import Path

from helpers import NO_COMPILER  # and torch

import labkit.watching.recorder  # noqa: F401 -- so that no fork has to
from labkit.watching import run_folders

exec(NO_COMPILER)
FOLDER = Path(sys.argv[1]).absolute()
LONGEST_S = 180


def begin(script, place, is_watched):
    """Be the process of a script, as it is when it begins."""
    os.setpgid(0, 0)
    os.chdir(place)
    for number, name in enumerate(("stdout", "stderr"), 1):
        opened = os.open(f"../{place.name}.{name}", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    if is_watched:
        folder = place.parent / f"{place.name}.runs"
        folder.mkdir()
        os.environ["LABKIT_WATCHING"] = run_folders.of_script = str(folder)
        from labkit.watching import hook

        if place.name == "untouched_loops":  # so that each of its loops is recorded
            hook.MOST_LOADERS = 1_000

        hook.install(sys.modules["torch.utils.data.dataloader"])
        hook.install(sys.modules["torch.optim.optimizer"])


def ended(pid):
    """Return how a script ended: its exit code, or the signal that did it."""
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(LONGEST_S)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


gc.freeze()  # else each fork looks through torch's objects when it ends: a second
for script in sorted(FOLDER.glob("*.py")):
    for how in ("plain", "watched"):
        place = FOLDER / how / script.stem
        place.mkdir(parents=True)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            begin(script, place, how == "watched")
            runpy.run_path(str(script), run_name="__main__")
            sys.exit()
        (place.parent / f"{place.name}.code").write_text(str(ended(child)))
