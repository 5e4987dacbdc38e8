"""Measuring one setting in an isolated run, and what it would take of the machine's memory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from labkit.analysis.facts import cores_used
from labkit.analysis.thresholds import FOREIGN_LOAD
from labkit.results.launch import launch
from labkit.spec import Pipeline
from labkit.tuner.search import Measured
from labkit.tuner.source import Source
from labkit.tuner.tuning import Setting, Trial

FEWEST_STEPS = 24  # behind the warm-up; with fewer, throughput is a guess
LONGEST_S = 30.0  # of one run
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry
PATIENCE = 3  # runs that may be made again because others used the cores meanwhile
SHARE = 0.8  # of the memory that is free: the rest is for what was not foreseen
CGROUP = Path("/sys/fs/cgroup")


class Bench:
    """Runs settings of one pipeline, or of one source, for about `seconds` each."""

    def __init__(
        self, pipeline: Pipeline, source: Source | None, seconds: float, patience: int = PATIENCE
    ):
        self.pipeline, self.source, self.seconds = pipeline, source, seconds
        self.patience, self.count = patience, 0  # runs that may be made again; that were made
        self.disturbed: list[float] = []  # the share of the cores that others took, where much
        self.each: Callable[[Any], None] | None = None  # called with the run that is going on

    def measure(self, setting: Setting, rate: float | None) -> Measured:
        """Run `setting` once; once more, and longer, where a run of unknown rate was too short."""
        run = self._calm_run(setting, rate)
        if run.error or run.outcome != "finished":
            return Measured(None, run.error or run.outcome, run)
        if run.steps < FEWEST_STEPS + setting.in_flight and rate is None:
            run = self._calm_run(setting, run.throughput or run.samples / self.seconds or 1.0)
        if run.error or run.throughput is None:
            why = run.error or f"only {run.steps} batches in {LONGEST_S:.0f} s: too slow to measure"
            return Measured(None, why, run)
        return Measured(run.throughput, None, run)

    def _calm_run(self, setting: Setting, rate: float | None) -> Any:
        """Run it; again, where other programs took the cores, and keep the calmer of the two."""
        seconds = self.seconds
        if rate:  # the queues are filled first, and that does not count
            batch_s = setting.batch_size / rate
            filling = min(2 * self.seconds, setting.in_flight * batch_s)
            seconds = min(LONGEST_S, max(seconds, FEWEST_STEPS * batch_s) + filling)
        run = self._run(setting, seconds)
        if taken_by_others(run) > FOREIGN_LOAD and self.patience and not run.error:
            self.patience -= 1
            again = self._run(setting, seconds)
            run = run if again.error else min(run, again, key=taken_by_others)
        if taken_by_others(run) > FOREIGN_LOAD:
            self.disturbed.append(taken_by_others(run))
        return run

    def _run(self, setting: Setting, seconds: float) -> Any:
        knobs = setting.to_dict() | {"steps": ENDLESS, "seconds": seconds, "xray": False}
        if self.source is not None:  # other items each time: none is in the cache from before
            knobs["seed"] = self.pipeline.seed + self.count
        self.count += 1
        bare = self.pipeline.but(num_workers=0, prefetch_factor=None, persistent_workers=False)
        run = launch(bare.but(**knobs), source=self.source)
        try:
            return run.wait(each=self.each)
        finally:
            if self.source is not None:
                self.source.forget(run.path)


def taken_by_others(run: Any) -> float:
    """Return the share of all cores that other programs used while it ran; 0 where not known."""
    _, foreign = cores_used(run)
    return (foreign or 0.0) / (run.machine.cpu_cores or 1)


def free_memory() -> tuple[int, int | None]:
    """Return the bytes free in RAM and in /dev/shm (None where there is none).

    RAM is the machine's, or the container's where that is less; workers hand over their batches
    through /dev/shm.
    """
    ram, shm = psutil.virtual_memory().available, None
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())  # "max" where there is none
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        used = int((CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        ram = max(0, min(ram, limit - used))
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm").free
    return ram, shm


def refusal(setting: Setting, trials: list[Trial], ram: int, shm: int | None) -> str | None:
    """Return why there is no memory for `setting`, from what smaller ones took; None if there is.

    `ram` and `shm` are the bytes that are free. Counted are the batches that wait in the queues,
    one in each worker's hands, and a copy of the process for each worker: a forked worker shares
    its parent's memory at first, but as Python counts references in the objects it reads, their
    pages become its own. So this is what they may grow to.
    """
    per_sample, worker_gib = 0.0, 0.0
    for trial in trials:
        for run in trial.runs:
            batch_bytes = (run.event("handoff") or {}).get("bytes") or 0
            per_sample = per_sample or batch_bytes / trial.setting.batch_size
            rss_gib = max((sample.get("rss_gib") or 0.0 for sample in run.telemetry), default=0.0)
            worker_gib = max(worker_gib, rss_gib / (1 + trial.setting.num_workers))
    batches = (setting.in_flight + setting.num_workers) * (2 if setting.pin_memory else 1)
    queues = batches * per_sample * setting.batch_size
    whole = queues + setting.num_workers * worker_gib * 2**30
    if shm is not None and queues > SHARE * shm:
        return f"its queues may hold {_gib(queues)} and /dev/shm has {_gib(shm)} free"
    if whole > SHARE * ram:
        return f"its workers and queues may take {_gib(whole)}, {_gib(ram)} of RAM are free"
    return None


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
