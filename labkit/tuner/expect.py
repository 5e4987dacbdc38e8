"""What a setting is expected to reach, from a run of another one."""

from __future__ import annotations

import math
from typing import Any

from labkit.analysis.prediction import predict
from labkit.spec import Pipeline
from labkit.tuner.search import Expected
from labkit.tuner.setting import Setting

HANDOFF_S = 1e-3  # of a batch between processes, where nothing better is known (0.5 to 2 ms here)
RANGE = 1.5  # either way, of a guess


class Expectation:
    """Predicts settings; guesses from waiting and computing alone where there is no prediction."""

    def __init__(self):
        self.runs: dict[int, Any] = {}
        self.values: dict[tuple[int, Setting], Expected | None] = {}
        self.cannot: str | None = None  # why it had to guess

    def __call__(self, run: Any, here: Setting, setting: Setting) -> Expected | None:
        """Return samples/s of `setting` (value, low, high) from `run`, which is one of `here`."""
        key = id(run), setting
        if key not in self.values:
            self.runs[id(run)] = self.runs.get(id(run)) or _as_ours(run, here)
            self.values[key] = self._predicted(run, setting) or guess(run, here, setting)
        return self.values[key]

    def _predicted(self, run: Any, setting: Setting) -> Expected | None:
        knobs = setting.to_dict()
        changes = {n: knobs[n] for n in ("num_workers", "prefetch_factor", "batch_size")}
        found = predict(self.runs[id(run)], **changes)
        if found.cannot or not found.throughput:
            self.cannot = found.cannot
            return None
        return found.throughput, *found.throughput_range


class OwnRun:
    """A run of the reader's own data, read as if it were of a pipeline without stated waits."""

    watched = None

    def __init__(self, run: Any, here: Setting):
        self._run = run
        self.pipeline = self.asked = Pipeline(
            dataset="array", io_ms=0, xray=False, steps=1_000_000, **here.to_dict()
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def _as_ours(run: Any, here: Setting) -> Any:
    return OwnRun(run, here) if run.watched else run


def guess(run: Any, here: Setting, setting: Setting) -> Expected | None:
    """Return what follows from the run's waiting and computing, with a wide range.

    Workers share the preparing, and the loop computes meanwhile: a step takes the longer of the
    two. At best each worker brings its whole, at worst no more than there are cores.
    """
    if not run.throughput:
        return None
    scale = setting.batch_size / here.batch_size
    step_s = here.batch_size / run.throughput * scale
    compute_s = step_s * (run.utilization or 0.0)
    on_gpu = run.machine.kind == "gpu"  # it computes while the loop prepares the next batch
    alone_s = run.wait_ms / 1e3 * scale if on_gpu else step_s - compute_s
    prepare_s = step_s * here.num_workers if here.num_workers else alone_s
    if not setting.num_workers:
        step_s = max(prepare_s, compute_s) if on_gpu else prepare_s + compute_s
        value = setting.batch_size / step_s
        return value, value / RANGE, value * RANGE
    cores = run.machine.cpu_cores or 1
    best, worst = (
        setting.batch_size / max(prepare_s / workers, compute_s + HANDOFF_S)
        for workers in (setting.num_workers, min(setting.num_workers, cores))
    )
    return math.sqrt(best * worst), worst / RANGE, best * RANGE
