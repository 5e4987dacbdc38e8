"""What a run with other knobs is expected to give; a guess where nothing can be predicted."""

from __future__ import annotations

import math
from typing import cast

from labkit.diagnosis.prediction import predict
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.tuning.settings import Knobs, LoaderSetting
from labkit.tuning.trial import Expected
from labkit.tuning.trial_bench import ENDLESS

HANDOFF_S = 1e-3  # of a batch between processes, where nothing better is known (0.5 to 2 ms here)
RANGE = 1.5  # either way, of a guess


class Forecast:
    """Predicts knobs from a run of others."""

    def __init__(self) -> None:
        self.seen: dict[int, Run] = {}  # `predict` remembers what it found out about one object
        self.cannot: str | None = None  # why it had to guess

    def of_loader(self, run: Run, here: LoaderSetting, setting: LoaderSetting) -> Expected | None:
        """Return what a loader setting gives, from a run of the setting `here`."""
        changes: Knobs = {
            "num_workers": setting.num_workers,
            "prefetch_factor": setting.prefetch_factor,
        }
        return self.of_changes(run, here, changes) or guess(run, here, setting)

    def of_changes(self, run: Run, here: LoaderSetting, changes: Knobs) -> Expected | None:
        """Return what changes to the knobs of a run give; None where nothing predicts it."""
        if id(run) not in self.seen:
            self.seen[id(run)] = as_pipeline(run, here) if run.watched else run
        prediction = predict(self.seen[id(run)], **changes)
        self.cannot = prediction.cannot or self.cannot
        if not prediction.throughput or not prediction.throughput_range:
            return None
        return Expected(prediction.throughput, *prediction.throughput_range)


class PipelineView:
    """A run of the reader's own data, read as if it were of a pipeline without stated waits."""

    watched = None

    def __init__(self, run: Run, here: LoaderSetting):
        self._run = run
        plain = Pipeline(dataset="array", io_ms=0, xray=False, steps=ENDLESS)
        self.pipeline = plain.but(**here.to_dict())
        self.asked = self.pipeline

    def __getattr__(self, name: str) -> object:
        return getattr(self._run, name)


def as_pipeline(run: Run, here: LoaderSetting) -> Run:
    """Return a view of a run with a pipeline, from which `predict` can tell."""
    return cast("Run", PipelineView(run, here))


def guess(run: Run, here: LoaderSetting, setting: LoaderSetting) -> Expected | None:
    """Return what follows from waiting and computing: a step takes the longer of the two.

    Workers share the preparing: at best each brings its whole, at worst each core does.
    """
    if not run.throughput:
        return None
    step_s = setting.batch_size / run.throughput
    compute_s = step_s * (run.utilization or 0.0)
    prepare_s = step_s * here.num_workers if here.num_workers else step_s - compute_s
    best_s = prepare_s + compute_s
    worst_s = best_s
    if setting.num_workers:
        cores = min(setting.num_workers, run.machine.cpu_cores or 1)
        least_s = compute_s + HANDOFF_S
        best_s = max(prepare_s / setting.num_workers, least_s)
        worst_s = max(prepare_s / cores, least_s)
    best = setting.batch_size / best_s
    worst = setting.batch_size / worst_s
    return Expected(math.sqrt(best * worst), worst / RANGE, best * RANGE)
