"""Runs a training script with its loader changed, each time anew, until its steps are steady.

The script is the user's, unchanged: what is tried comes through its environment
(`labkit.watching.trial_hook`). Nothing of a run is left when it is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from labkit.api import Run
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.watched_script import judge_runs, runs_in
from labkit.knobs import Settings
from labkit.process import folders
from labkit.process.family import LINUX, MARK, descendants, die_with, end_marked, exit_name
from labkit.process.leftovers import delete_run, remove_segments
from labkit.spec import LOADER_KNOBS
from labkit.stamps.events import now_ns
from labkit.stamps.interrupts import held
from labkit.tuning.search_result import THREADS
from labkit.tuning.trial import Outcome, of_loader
from labkit.watching.run_folders import hooked
from labkit.watching.trial_hook import FEWEST_STEPS, ORDER, Order, Seen

FIRST_STEP_S = 60.0  # in which a training step has to be seen
GRACE_S = 5.0  # that an interrupted script has to end by itself
LOOK_S = 0.05
WRITTEN = "written"  # the folder for a script's files, in $LABKIT_TUNE_DIR
TAIL = 2000  # characters of its output that are read for why it failed
NO_STEP = (
    f"in its first {FIRST_STEP_S:.0f} s no optimizer made three steps on batches of a DataLoader: "
    "there is no loader to change. `labkit watch` says where its time goes."
)


class ScriptBench:
    """Runs one command with knobs of its loader changed."""

    def __init__(self, command: list[str], seconds: float, cwd: Path | None = None):
        """`command` as a shell takes it; `seconds` of steady steps are timed in each run."""
        self.command = runnable(command)
        self.seconds = seconds
        self.longest_s = FIRST_STEP_S + 10 * seconds
        self.cwd = cwd
        self.each: Callable[[Run], object] | None = None  # a run of a script has no Run to show
        # What the first look says
        self.site: str | None = None
        self.epochs: bool | None = None
        self.batch_size: int | None = None
        self.loader: Settings = {}  # its arguments
        self.verdict: Diagnosis | None = None
        self.code = LoopCode()

    def look(self) -> Outcome:
        """Run the script as it is, watched; raises RuntimeError where nothing can be tried."""
        found = self._run({}, watched=True)
        seen = found.seen
        if seen is None or not seen["site"]:
            raise RuntimeError(NO_STEP if seen else found.error)
        if seen["world"] > 1:
            raise RuntimeError(
                f"{seen['world']} processes train together: tune one of them alone "
                "(torchrun --nproc-per-node=1)."
            )
        if seen["batches"] < FEWEST_STEPS and seen["ended"] == "over":
            raise RuntimeError(
                f"its training loop made {seen['steps']} steps in {found.seconds:.0f} s, too few "
                f"to compare: give it more epochs or data, or more time (--seconds "
                f"{4 * self.seconds:.0f})."
            )
        self.site = seen["site"]
        self.epochs = seen["epochs"]
        known = {name: value for name, value in seen["loader"].items() if value is not None}
        self.loader = of_loader(known)
        return found

    def measure(self, knobs: Settings, rate: float | None = None, whole: bool = False) -> Outcome:
        """Run the script with knobs: arguments of its loader, and what `Search` tries besides.

        It ends early where it is far slower than `rate`, unless the run is to be `whole`.
        """
        floor = None if whole or rate is None else rate / (self.batch_size or 1)
        return self._run(knobs, floor)

    def _run(self, knobs: Settings, floor: float | None = None, watched: bool = False) -> Outcome:
        """Run the script once; the rate is in samples/s, or batches/s of an unknown size."""
        folder = folders.new_run()
        try:
            (folder / WRITTEN).mkdir()
            (folder / ORDER).write_text(json.dumps(self._order(knobs, floor)), encoding="utf-8")
            start_ns = now_ns()
            busy_s = others_busy_s()
            env = environment(folder, knobs, watched)
            failed = run_script(self.command, env, self.cwd, folder, self.longest_s)
            seconds = (now_ns() - start_ns) / 1e9
            busy_s = others_busy_s() - busy_s
            others = max(0.0, busy_s / seconds / (psutil.cpu_count() or 1))
            if watched and (judged := judge_runs(runs_in(folder), start_ns, now_ns())):
                self.verdict = judged.ranks.verdict
                self.code = LoopCode.of(judged.run.loop_code, trainer=judged.run.trainer)
            seen = seen_in(folder)
        finally:
            delete_run(folder)
        if seen is None:
            return Outcome(error=failed, seconds=seconds, others=others)
        if not seen["batches"] or not seen["seconds"]:
            error = f"over after {seen['steps']} steps, before any was timed"
            return Outcome(error=error, seen=seen, seconds=seconds, others=others)
        size = seen["loader"].get("batch_size")
        self.batch_size = size if isinstance(size, int) else None
        steps_per_s = seen["batches"] / seen["seconds"]
        return Outcome(
            steps_per_s * (self.batch_size or 1),
            seen=seen,
            seconds=seconds,
            others=others,
            waited=seen["wait"],
            longest_wait=seen["longest_wait_s"] * steps_per_s,
        )

    def _order(self, knobs: Settings, floor: float | None) -> Order:
        loader = {name: value for name, value in knobs.items() if name in LOADER_KNOBS}
        loader.pop("batch_size", None)
        return Order(
            site=self.site,
            changes=loader,
            ready=bool(knobs.get("ready")),
            seconds=self.seconds,
            epochs=self.epochs,
            floor=floor,
        )


def environment(folder: Path, knobs: Settings, watched: bool) -> dict[str, str]:
    """Return the variables of a script that is run for a trial."""
    env = hooked(LABKIT_TRIAL=str(folder), LABKIT_TUNE_DIR=str(folder / WRITTEN))
    env[MARK] = str(folder)
    if watched:
        env["LABKIT_WATCHING"] = str(folder)
    if threads := knobs.get("library_threads"):
        env |= dict.fromkeys(THREADS, str(threads))
    return env


def run_script(
    command: list[str], env: Mapping[str, str], cwd: Path | None, folder: Path, longest_s: float
) -> str:
    """Run a script in a session of its own until it has seen enough, and leave nothing of it.

    Return why nothing was seen, where that is so.
    """
    us = os.getpid()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=(lambda: die_with(us)) if LINUX else None,
        )
        deadline = time.monotonic() + longest_s
        code = None
        try:
            while code is None and seen_in(folder) is None and time.monotonic() < deadline:
                time.sleep(LOOK_S)
                code = process.poll()
        finally:
            with held():  # a second Ctrl-C would leave its workers
                end_script(process, folder)
        output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL))
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    if lines and lines[-1].startswith("EOFError"):
        return "the script asks something on stdin, which is closed: give it as arguments."
    if (folder / "failed").exists():
        return f"labkit could not be loaded: {(folder / 'failed').read_text('utf-8')}"
    if code and lines:
        return f"the script failed ({exit_name(code)}): {lines[-1]}"
    return NO_STEP


def end_script(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Interrupt a script where it does not do so itself, then kill what does not end.

    What it had in shared memory is removed.
    """
    pids = {process.pid, *descendants(process.pid)}
    if process.poll() is None and seen_in(folder) is None:
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    end_marked(folder, {process.pid})
    process.kill()
    process.wait()
    remove_segments(pids)


def others_busy_s() -> float:
    """Return for how long the cores have worked, all together, but for our ended children, s."""
    machine = psutil.cpu_times()
    own = os.times()
    busy_s = machine.user + machine.system + getattr(machine, "nice", 0.0)
    return busy_s - own.children_user - own.children_system


def seen_in(folder: Path) -> Seen | None:
    """Return what the process that made most steps saw; None where none has said so yet."""
    found = [json.loads(each.read_text(encoding="utf-8")) for each in folder.glob("seen-*.json")]
    return max(found, key=lambda seen: seen["steps"], default=None)


def runnable(command: list[str], by: str = "tune") -> list[str]:
    """Return a command, our own Python before a script that is no program; ValueError of none."""
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ValueError(f"give the script to {by}: labkit {by} -- python train.py")
    is_program = shutil.which(command[0]) is not None
    if command[0].endswith(".py") and Path(command[0]).is_file() and not is_program:
        return [sys.executable, *command]
    if not is_program:
        raise ValueError(
            f"cannot start {command[0]!r}: there is no such program. Give the command as a shell "
            f"takes it: labkit {by} -- python train.py"
        )
    return command
