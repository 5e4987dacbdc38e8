"""Runs a training script with its loader changed, each time anew, until its steps are steady.

The script is the user's, unchanged, and watched as by `labkit watch`: how fast it is stands in the
record of its training loop. What is tried comes through its environment
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
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from labkit.api import Run
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.several_runs import judge_runs, runs_in
from labkit.instruments.loader_knobs import in_flight
from labkit.knobs import Settings
from labkit.process import folders
from labkit.process.family import MARK, descendants, end_marked, exit_name
from labkit.process.leftovers import remove_segments
from labkit.results.run_data import RunData
from labkit.spec import LOADER_KNOBS
from labkit.stamps.interrupts import collect_interrupts
from labkit.tuning.search_result import Tuning, thread_variables
from labkit.tuning.trial import Outcome, Trial, of_loader
from labkit.watching.headroom import KEPT_BATCHES
from labkit.watching.run_folders import folders_in, start, watched_environment
from labkit.watching.trial_hook import LoaderChange

CHANGED = set(LOADER_KNOBS) - {"batch_size"}
FIRST_STEP_S = 60.0  # in which a training step has to be seen
GRACE_S = 5.0  # that an interrupted script has to end by itself
LOOK_S = 0.2
TAIL = 2000  # characters of its output that are read for why it failed
WARM_STEPS = 3  # after what is ready or kept at the start
FEWEST_STEPS = 30  # that are timed; with fewer, a rate is a guess
LONGEST = 4.0  # times `seconds` that as many may take
EARLY_S = 1.0  # of steady steps, after which a run that is clearly worse is ended
NO_STEP = (
    "no optimizer made a step on batches of a DataLoader: there is no loader to change. "
    "`labkit watch` says where its time goes."
)

# Removed whatever a script has left in it
scratch_folder = partial(tempfile.TemporaryDirectory, ignore_cleanup_errors=True)


class ScriptBench:
    """Runs one command with knobs of its loader changed."""

    def __init__(self, command: list[str], seconds: float, cwd: Path | None = None):
        """`command` as a shell takes it; `seconds` of steady steps are timed in each run."""
        self.command = runnable(command)
        self.seconds = seconds
        self.cwd = cwd
        self.each: Callable[[Run], object] | None = None  # a script's runs are not shown
        self.loop: RunData | None = None  # that was trained in the last run
        # What the first look says
        self.made = ""  # "file:line" where the loader is made
        self.epochs: bool | None = None  # whether whole epochs are timed

    def look(self, tuning: Tuning) -> None:
        """Run the script as it is, and begin `tuning`; RuntimeError where nothing can be tried."""
        with scratch_folder(dir=folders.home()) as folder:
            outcome = self._run(folder, {})
            runs = runs_in(Path(folder))
            judged = judge_runs(runs)
        loop = self.loop
        if loop is None or outcome.error:
            raise RuntimeError(outcome.error)
        if len({pid_of(run) for run in runs if run.event("trains")}) > 1:
            raise RuntimeError(
                "several processes train together: tune one of them alone "
                "(torchrun --nproc-per-node=1)."
            )
        self.made = made_at(loop)
        self.epochs = len(loop.first_steps) > 1
        tuning.loader = Path(self.made).name
        tuning.code = LoopCode.of(loop.loop.get("code"), trainer=bool(loop.loop.get("trainer")))
        tuning.verdict = judged and judged[1]
        tuning.start = of_loader(knobs_of(loop))
        tuning.unit = "samples/s" if "batch_size" in knobs_of(loop) else "batches/s"
        tuning.tried = [Trial(dict(tuning.start), outcomes=[outcome])]

    def measure(self, knobs: Settings, rate: float | None = None, whole: bool = False) -> Outcome:
        """Run the script with knobs: arguments of its loader, and what `Search` tries besides.

        It ends early where it is far slower than `rate`, unless the run is to be `whole`.
        """
        with scratch_folder(dir=folders.home()) as folder:
            return self._run(folder, knobs, 0.0 if whole else rate or 0.0)

    def _run(self, folder: str, knobs: Settings, rate: float = 0.0) -> Outcome:
        """Run the script once, with the records of its loops in `folder`."""
        begun_s, busy_s = time.monotonic(), others_busy_s()
        self.loop = None
        with scratch_folder() as scratch, tempfile.TemporaryFile() as output:
            script = start(
                self.command,
                env=self._environment(folder, scratch, knobs),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                is_timed = self._follow(script, Path(folder), rate)
                why_none = why_no_loop(output, script.poll())
            finally:
                with collect_interrupts():  # a second Ctrl-C would leave its workers
                    stop(script, pid_of(self.loop) if self.loop else script.pid, folder)
        seconds = time.monotonic() - begun_s
        others = max(0.0, others_busy_s() - busy_s) / seconds / (psutil.cpu_count() or 1)
        if not is_timed:
            self.loop = self._loop(runs_in(Path(folder)))
        if self.loop is None:
            return Outcome(error=why_none, seconds=seconds, others=others)
        return Outcome(*self._rate(self.loop, is_timed), seconds=seconds, others=others)

    def _environment(self, folder: str, scratch: str, knobs: Settings) -> dict[str, str]:
        """Return the environment of a run: what it changes, and where it may write."""
        changes = {name: value for name, value in knobs.items() if name in CHANGED}
        is_ready = "ready" in knobs
        if is_ready:
            changes["num_workers"] = 0  # they would only get into the way
        change = LoaderChange(made=self.made, changes=changes, ready=is_ready)
        env = watched_environment(LABKIT_WATCHING=folder, LABKIT_TRIAL=json.dumps(change))
        return env | {MARK: folder, "LABKIT_TUNE_DIR": scratch} | thread_variables(knobs)

    def _rate(self, loop: RunData, is_timed: bool) -> tuple[float | None, str | None]:
        """Return the rate of a loop, or why it has none: it ended before it was timed."""
        steps_ms = self._steps_ms(loop)
        if is_timed or len(steps_ms) >= FEWEST_STEPS:
            return rate_of(loop, steps_ms), None
        return None, (
            f"its training loop made {loop.steps} steps, too few to compare: give it more epochs "
            f"or data, or more time (--seconds {4 * self.seconds:.0f})."
        )

    def _follow(self, script: subprocess.Popen[Any], folder: Path, rate: float) -> bool:
        """Follow the training loop, `loop`, until it has been timed; return whether it ever was."""
        runs: dict[Path, Run] = {}
        begun_s = time.monotonic()
        until_s = begun_s + FIRST_STEP_S
        while script.poll() is None and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            for each in folders_in(folder):
                runs.setdefault(each, Run(each))
            self.loop = loop = self._loop(run.data for run in runs.values())
            if loop is not None:
                until_s = begun_s + FIRST_STEP_S + 10 * self.seconds
                if self._is_timed(loop, self._steps_ms(loop), rate):
                    return True
        return False

    def _loop(self, runs: Iterable[RunData]) -> RunData | None:
        """Return the longest loop that trains on a loader made in the place that is changed."""
        trains = [run for run in runs if run.event("trains") and made_at(run)]
        there = [run for run in trains if self.made in ("", made_at(run))]
        return max(there, key=lambda run: run.steps, default=None)

    def _steps_ms(self, loop: RunData) -> list[float]:
        """Return how long steps took: of whole epochs but the first, or those that are steady."""
        steps_ms = loop.frame.step_ms
        later = loop.first_steps[1:]  # the first step of each pass but the first
        if self.epochs or (later and self.epochs is None):
            whole = [*later, loop.steps][: len(loop.all("pass"))] or [0]
            return steps_ms.loc[whole[0] : whole[-1] - 1].tolist()
        warm = WARM_STEPS + max(KEPT_BATCHES, in_flight(of_loader(knobs_of(loop))))
        return steps_ms.loc[warm:].drop(later, errors="ignore").tolist()

    def _is_timed(self, loop: RunData, steps_ms: list[float], rate: float) -> bool:
        """Return whether these steps are enough, or clearly slower than `rate`."""
        took_s = sum(steps_ms) / 1e3
        if took_s > EARLY_S and rate_of(loop, steps_ms) < rate / 2:
            return True
        return took_s >= self.seconds * (1 if len(steps_ms) >= FEWEST_STEPS else LONGEST)


def stop(script: subprocess.Popen[Any], trainer: int, folder: str) -> None:
    """Interrupt the process that trains as by a Ctrl-C; kill what of its run does not end.

    The shared memory of all of them is removed.
    """
    pids = {script.pid, *descendants(script.pid)}
    if script.poll() is None:
        with contextlib.suppress(OSError):
            os.kill(trainer, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        script.wait(GRACE_S)
    end_marked(folder, {script.pid})
    script.kill()
    script.wait()
    remove_segments(pids)


def made_at(loop: RunData) -> str:
    """Return the line that made a loop's loader, "file:line"; "" where it has none of torch's."""
    return loop.fact_of("spec", "watched", "code", "made", default="")


def knobs_of(loop: RunData) -> Settings:
    """Return the arguments of a loop's loader that are known."""
    return loop.fact_of("spec", "pipeline", default={})


def rate_of(loop: RunData, steps_ms: list[float]) -> float:
    """Return how many samples a second some steps had; batches, where their size is not known."""
    return len(steps_ms) * knobs_of(loop).get("batch_size", 1) / sum(steps_ms) * 1e3


def pid_of(loop: RunData) -> int:
    """Return the process that a loop runs in."""
    return loop.fact_of("hello", "pid")


def why_no_loop(output: IO[bytes], code: int | None) -> str:
    """Say why a script trained on no loader; `code` is that of one that has ended by itself."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL))
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    if lines and lines[-1].startswith("EOFError"):
        return "the script asks something on stdin, which is closed: give it as arguments."
    return f"the script failed ({exit_name(code)}): {lines[-1]}" if code and lines else NO_STEP


def others_busy_s() -> float:
    """Return for how long the cores have worked for others than us and our ended children, s."""
    everyone = psutil.cpu_times()
    busy_s = everyone.user + everyone.system + getattr(everyone, "nice", 0.0)
    return busy_s - sum(os.times()[:4])


def runnable(command: list[str], by: str = "tune") -> list[str]:
    """Return a command, our own Python before a script that is no program; ValueError of none."""
    command = command[1:] if command[:1] == ["--"] else command
    if command and shutil.which(command[0]):
        return command
    if command and command[0].endswith(".py") and Path(command[0]).is_file():
        return [sys.executable, *command]
    raise ValueError(
        f"cannot start {' '.join(command[:1]) or 'nothing'}: there is no such program. Give the "
        f"command as a shell takes it: labkit {by} -- python train.py"
    )
