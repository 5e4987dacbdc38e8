"""Whether a loader setting fits in memory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence

from labkit import quotas
from labkit.quotas import GIB
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import Trial

SHARE = 0.8  # of the free memory that may be used up; the rest is for what was not foreseen


def free_memory() -> tuple[int, int | None]:
    """Return the bytes free in RAM (of the container, where there is one) and in /dev/shm."""
    shared = None
    with contextlib.suppress(OSError):
        shared = shutil.disk_usage("/dev/shm").free
    return quotas.free_ram_bytes(), shared


def too_large(setting: LoaderSetting, trials: Sequence[Trial]) -> str | None:
    """Return why there is no memory for a setting, from what smaller ones took; None if there is.

    That counts the batches in the queues, one more that each worker prepares, and a copy of the
    process for each worker: a forked one shares its parent's pages only until it writes to them,
    and counting references is writing.
    """
    ram, shared = free_memory()
    sample_bytes = 0.0
    worker_bytes = 0.0
    for trial in trials:
        for run in trial.runs:
            handoff = run.event("handoff") or {}
            batch_bytes = handoff.get("bytes") or 0
            sample_bytes = sample_bytes or batch_bytes / trial.setting.batch_size
            rss_gib = max((sample.get("rss_gib") or 0.0 for sample in run.telemetry), default=0.0)
            worker_bytes = max(worker_bytes, rss_gib * GIB / (1 + trial.setting.num_workers))
    batches = setting.in_flight + setting.num_workers
    copies = 2 if setting.pin_memory else 1
    queues = copies * batches * sample_bytes * setting.batch_size
    if shared is not None and queues > SHARE * shared:
        return _too_large(queues, shared, "/dev/shm (docker run --shm-size)")
    total = queues + setting.num_workers * worker_bytes
    return _too_large(total, ram, "RAM") if total > SHARE * ram else None


def _too_large(needed: float, free: int, place: str) -> str:
    return f"may take {needed / GIB:.2f} GiB; {free / GIB:.2f} GiB of {place} are free"
