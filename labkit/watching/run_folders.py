"""A watched script: how it runs in our place, what samples beside it, its runs' folders.

There is a folder for each loop, named by the process that it is in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.process.family import LINUX, die_with

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")
TELEMETRY = "telemetry"  # in a run's folder: the file that its telemetry goes on with
SITE = Path(__file__).parent / "site"  # on the PYTHONPATH of what `labkit watch` runs
# Where `labkit watch` wants the runs of this process; None where it does not run it. Read now, as a
# script may empty its environment
of_script: str | None = os.environ.get("LABKIT_WATCHING") or None


def watched_environment(**more: str) -> dict[str, str]:
    """Return our environment, with more, in which a script's Python finds the hook."""
    paths = filter(None, [str(SITE), os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


def new_folder(pid: int) -> Path | None:
    """Make the folder for the run of another loop of this process.

    None where no `labkit watch` runs it.
    """
    if of_script is None:
        return None
    folder = Path(of_script) / f"{own_rank()}-{pid}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    return folder


def reach_children() -> bool:
    """Whether a Python that this process starts would find what records it, by its environment."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return of_script == os.environ.get("LABKIT_WATCHING") and str(SITE) in paths


def own_rank() -> str:
    """Return the rank of this process, as its launcher names it; "0" without one."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))


def folders_in(folder: Path) -> list[Path]:
    """Return the folders of all runs of a script."""
    return sorted(each for each in folder.iterdir() if each.is_dir())


def process_of(folder: Path) -> str:
    """Return the rank and the id of a run's process: "0-4711"."""
    return folder.name.rpartition("-")[0]


def rank_of(folder: Path) -> int:
    """Return the rank of a run's process; 0 where it is no number."""
    rank = folder.name.partition("-")[0]
    return int(rank) if rank.isdigit() else 0


def start(command: list[str], **how: Any) -> subprocess.Popen[Any]:
    """Start a command in a session of its own; where we are killed, so is it (Linux).

    Nobody could end it by the process id that they know.
    """
    us = os.getpid()
    end_with_us = (lambda: die_with(us)) if LINUX else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_us, **how)


def run_in_foreground(command: list[str], env: dict[str, str], stdout: int | None) -> int:
    """Run a command in our place, as torchrun does; return its exit code, 128 and more of a signal.

    What somebody sends to us is passed on. As its session is its own, each signal reaches it once,
    whether it is sent to us or to all of a terminal. Raises ValueError where it cannot be started.
    """
    with contextlib.suppress(Exception):  # a closed stdout
        sys.stdout.flush()
    try:
        script = start(command, stdout=stdout, env=env, close_fds=False)
    except OSError as error:
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}") from None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        script.send_signal(number)

    with contextlib.ExitStack() as restored:
        for number in signal.Signals:  # Windows has few
            # what we ignore, as under nohup, the script ignores as well
            if number.name in PASSED_ON and signal.getsignal(number) != signal.SIG_IGN:
                restored.callback(signal.signal, number, signal.signal(number, pass_on))
        code = script.wait()
    return 128 - code if code < 0 else code


def telemetry_beside(folder: Path) -> Path | None:
    """Sample into the run in `folder` beside this process; None where that cannot be started.

    Returns the file that is deleted to end it. It ends with this process as well, whose child it is
    not: a program waits for its own children only.
    """
    if not LINUX:  # it could outlive us
        return None
    while_there = folder / TELEMETRY
    path = os.pathsep.join(filter(None, [str(SITE.parents[2]), os.environ.get("PYTHONPATH")]))
    own = [sys.executable, "-m", "labkit.instruments.telemetry", str(os.getpid()), str(while_there)]
    with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
        while_there.touch()
        # the shell is over at once, and leaves the process to the system
        process = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "LABKIT_WATCHING": ""},
            start_new_session=True,  # no Ctrl-C
        )
        process.wait()
        return while_there
    return None
