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
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil

from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.watched_script import judge_runs, runs_in
from labkit.knobs import Settings
from labkit.process import folders
from labkit.process.death_signal import die_with
from labkit.process.events import now_ns
from labkit.process.family import LINUX, MARK, end_marked, exit_name
from labkit.process.interrupts import held
from labkit.process.leftovers import remove_segments
from labkit.process.run_mark import delete_run
from labkit.results.run import Run
from labkit.spec import LOADER_KNOBS
from labkit.tuning.search_result import THREADS
from labkit.tuning.trial import Outcome
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


@dataclass
class Tried:
    """One run of the script."""

    seen: Seen | None
    error: str | None
    seconds: float  # that it took, from its start to its end
    others: float  # share of the cores that other programs used meanwhile
    ready: bool = False  # whether its batches were ready
    watched: Run | None = field(default=None, repr=False)
    verdict: Diagnosis | None = field(default=None, repr=False)


class ScriptBench:
    """Runs one command with knobs of its loader changed."""

    def __init__(self, command: list[str], seconds: float, cwd: Path | None = None):
        """`command` as a shell takes it; `seconds` of steady steps are timed in each run."""
        self.command = runnable(command)
        self.seconds = seconds
        self.longest_s = FIRST_STEP_S + 10 * seconds
        self.cwd = cwd
        self.site: str | None = None
        self.epochs: bool | None = None
        self.batch_size: int | None = None
        self.best: float | None = None  # batches/s; where it is known, what is far below ends early
        self.to_the_end = False  # whether nothing is to end early
        self.tried: list[Tried] = []
        self.first: Tried | None = None  # where it is to be measured, and is not to run again
        self.count = 0  # of them
        self.each: Callable[[Run], object] | None = None  # a run of a script has no Run to show

    def look(self) -> Tried:
        """Run the script as it is, watched; raises RuntimeError where nothing can be tried."""
        tried = self._run({}, watched=True)
        seen = tried.seen
        if seen is None or not seen["site"]:
            raise RuntimeError(tried.error or NO_STEP)
        if seen["world"] > 1:
            raise RuntimeError(
                f"{seen['world']} processes train together: tune one of them alone "
                "(torchrun --nproc-per-node=1)."
            )
        if seen["batches"] < FEWEST_STEPS and seen["ended"] == "over":
            do = "give it more epochs or data"
            if tried.seconds > self.longest_s:  # it was ended
                do = f"give --seconds {4 * self.seconds:.0f}, or smaller steps"
            raise RuntimeError(
                f"its training loop made {seen['steps']} steps in {tried.seconds:.0f} s, too few "
                f"to compare: {do}."
            )
        self.site = seen["site"]
        self.epochs = seen["epochs"]
        size = seen["loader"].get("batch_size")
        self.batch_size = size if isinstance(size, int) else None
        return tried

    def measure(self, knobs: Settings, rate: float | None = None) -> Outcome:
        """Run the script with knobs: arguments of its loader and those of `ScriptSearch`.

        The first time, it is the run of the script as it is that is there already.
        """
        tried, self.first = self.first, None
        return self.outcome(tried or self._run(knobs))

    def outcome(self, tried: Tried) -> Outcome:
        """Return the rate that a run came to, or why it has none."""
        seen = tried.seen
        if seen is None:
            return Outcome(None, tried.error, None)
        if not seen["batches"] or not seen["seconds"]:
            return Outcome(None, f"over after {seen['steps']} steps, before any was timed", None)
        rate = seen["batches"] / seen["seconds"]
        if not tried.ready:
            self.best = max(self.best or 0.0, rate)
        return Outcome(rate * (self.batch_size or 1), None, None)

    def _run(self, knobs: Settings, watched: bool = False) -> Tried:
        folder = folders.new_run()
        try:
            tried = self._run_in(folder, knobs, watched)
        finally:
            delete_run(folder)
        self.tried.append(tried)
        self.count += 1
        return tried

    def _run_in(self, folder: Path, knobs: Settings, watched: bool) -> Tried:
        loader = {name: value for name, value in knobs.items() if name in LOADER_KNOBS}
        loader.pop("batch_size", None)
        order = Order(
            site=self.site,
            changes=loader,
            ready=bool(knobs.get("ready")),
            torch_threads=cast("int | None", knobs.get("torch_threads")),
            seconds=self.seconds,
            epochs=self.epochs,
            floor=None if self.to_the_end else self.best,
        )
        (folder / ORDER).write_text(json.dumps(order), encoding="utf-8")
        start_ns = now_ns()
        process = ScriptProcess(self.command, self._environment(folder, knobs, watched), self.cwd)
        seen = process.wait(folder, self.longest_s)
        tried = Tried(seen, None, (now_ns() - start_ns) / 1e9, process.load.others, order["ready"])
        if seen is None:
            tried.error = process.why_nothing(folder)
        elif watched and (judged := judge_runs(runs_in(folder), start_ns, now_ns())):
            tried.watched, tried.verdict = judged.run, judged.ranks.verdict
        return tried

    def _environment(self, folder: Path, knobs: Settings, watched: bool) -> Mapping[str, str]:
        (folder / WRITTEN).mkdir()
        env = hooked(LABKIT_TRIAL=str(folder), LABKIT_TUNE_DIR=str(folder / WRITTEN))
        env[MARK] = str(folder)
        if watched:
            env["LABKIT_WATCHING"] = str(folder)
        if knobs.get("library_threads"):
            env |= dict.fromkeys(THREADS, str(knobs["library_threads"]))
        return env


class ScriptProcess:
    """A script that runs in a session of its own; its output goes to a file."""

    def __init__(self, command: list[str], env: Mapping[str, str], cwd: Path | None):
        us = os.getpid()
        self.began_s = time.time()
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=(lambda: die_with(us)) if LINUX else None,
        )
        self.pids: set[int] = {self.process.pid}
        self.load = Load()
        self.was_ended = False  # by us
        self.last_lines: list[str] = []  # of its output, once it is over

    def wait(self, folder: Path, longest_s: float) -> Seen | None:
        """Wait for what the script saw, and have it end; None where it saw nothing in time."""
        deadline = time.monotonic() + longest_s
        told = False
        try:
            while self.process.poll() is None and time.monotonic() < deadline:
                self.pids |= self.load.look(self.process.pid)
                if not told and seen_in(folder) is not None:  # it interrupts itself
                    told = True
                    deadline = time.monotonic() + GRACE_S
                time.sleep(LOOK_S)
        finally:
            with held():  # a second Ctrl-C would leave its workers
                self.end(folder)
        return seen_in(folder)

    def end(self, folder: Path) -> None:
        """Interrupt what still runs, then kill what does not end; remove what it had in memory."""
        if self.process.poll() is None:
            self.was_ended = True
            with contextlib.suppress(OSError):
                self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        end_marked(folder, {self.process.pid}, self.began_s + 1)
        self.process.kill()
        self.process.wait()
        remove_segments(self.pids)
        with self.output as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL))
            self.last_lines = output.read().decode("utf-8", "replace").strip().splitlines()

    def why_nothing(self, folder: Path) -> str:
        """Say why no training step was seen."""
        lines = self.last_lines
        code = self.process.returncode
        if lines and lines[-1].startswith("EOFError"):
            return "the script asks something on stdin, which is closed: give it as arguments."
        if (folder / "failed").exists():
            return f"labkit could not be loaded: {(folder / 'failed').read_text('utf-8')}"
        if code and not self.was_ended and lines:
            return f"the script failed ({exit_name(code)}): {lines[-1]}"
        return NO_STEP


class Load:
    """Who uses the cores while a script runs."""

    def __init__(self):
        self.began_s = time.monotonic()
        self.busy_s = busy_s()
        self.own_s = 0.0
        self.others = 0.0  # the share of the cores that others used, 0 to 1

    def look(self, root: int) -> set[int]:
        """Add up what a process and those below it have used; return their pids."""
        pids = set()
        own_s = 0.0
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(root)
            for each in (first, *first.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = each.cpu_times()
                    own_s += times.user + times.system
                    own_s += getattr(times, "children_user", 0.0)  # that have ended
                    own_s += getattr(times, "children_system", 0.0)
                    pids.add(each.pid)
        self.own_s = max(self.own_s, own_s)
        cores_s = (time.monotonic() - self.began_s) * (psutil.cpu_count() or 1)
        self.others = max(0.0, (busy_s() - self.busy_s - self.own_s) / cores_s)
        return pids


def busy_s() -> float:
    """Return for how long the cores have worked, all together, s."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)


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
