"""What a setting would take of the machine's memory, before it is run."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.tuner.setting import Setting
from labkit.tuner.tuning import Trial

SHARE = 0.8  # of what is free: the rest is for what was not foreseen
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Free:
    """Memory that is free now, bytes; None where it cannot be told.

    Attributes:
        ram: Of the machine, or of the container where that is less.
        shm: Of /dev/shm, through which workers hand over their batches.
    """

    ram: int | None
    shm: int | None

    @classmethod
    def now(cls) -> Free:
        """Read it."""
        import psutil

        ram = min(filter(None, [psutil.virtual_memory().available, _left_in_container()]))
        shm = None
        with contextlib.suppress(OSError):
            shm = shutil.disk_usage("/dev/shm").free
        return cls(ram, shm)


def _left_in_container() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())  # "max" where there is none
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        used = int((CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        return max(0, limit - used)
    return None


def refusal(setting: Setting, trials: list[Trial], free: Free) -> str | None:
    """Return why there is no memory for `setting`, from what smaller ones took; None if there is.

    Counted are the batches that wait in the queues and a copy of the process for each worker: a
    forked worker shares its parent's memory at first, but as Python counts references in the
    objects it reads, their pages become its own. So this is what they may grow to.
    """
    queues = queued_bytes(setting, trials)
    if free.shm is not None and queues > SHARE * free.shm:
        return f"its queues may hold {_gib(queues)} and /dev/shm has {_gib(free.shm)} free"
    whole = queues + setting.num_workers * worker_bytes(trials)
    if free.ram is not None and whole > SHARE * free.ram:
        return f"its workers and queues may take {_gib(whole)}, {_gib(free.ram)} of RAM are free"
    return None


def queued_bytes(setting: Setting, trials: list[Trial]) -> float:
    """Return the bytes of all batches that may wait, and of one in each worker's hands."""
    for trial in trials:
        size = next((s for run in trial.runs if (s := batch_bytes(run))), None)
        if size:
            batches = (setting.in_flight + setting.num_workers) * (2 if setting.pin_memory else 1)
            return batches * size * setting.batch_size / trial.setting.batch_size
    return 0.0


def batch_bytes(run: Any) -> float | None:
    """Return the bytes of one batch of a run, as it was handed over; None where not measured."""
    return (run.event("handoff") or {}).get("bytes")


def worker_bytes(trials: list[Trial]) -> float:
    """Return what one worker may grow to: as large as the process it is a copy of."""
    sizes = [
        sample["rss_gib"] / (1 + trial.setting.num_workers)
        for trial in trials
        for run in trial.runs
        for sample in run.telemetry
        if sample.get("rss_gib")
    ]
    return max(sizes, default=0.0) * 2**30


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
