"""What a run with other knobs is expected to give; a guess where nothing can be predicted."""

from __future__ import annotations

import math
from typing import cast

from labkit.diagnosis.prediction import Prediction, predict
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.tuning.settings import Knobs, LoaderSetting
from labkit.tuning.trial import Expected
from labkit.tuning.trial_bench import ENDLESS

HANDOFF_S = 1e-3  # of a batch between processes, where nothing better is known (0.5 to 2 ms here)
RANGE = 1.5  # either way, of a guess
PREDICTED = ("num_workers", "prefetch_factor", "batch_size")


class Forecast:
    """Predicts knobs from a run of others; remembers what it found out about a run."""

    def __init__(self):
        self.runs: dict[int, Run] = {}  # `predict` remembers what it found out about one object
        self.values: dict[tuple[int, LoaderSetting], Expected | None] = {}
        self.cannot: str | None = None  # why it had to guess

    def of_loader(self, run: Run, here: LoaderSetting, setting: LoaderSetting) -> Expected | None:
        """Return what a loader setting gives, from a run of the setting `here`."""
        key = id(run), setting
        if key not in self.values:
            self.values[key] = self._loader(run, here, setting)
        return self.values[key]

    def of_changes(self, run: Run, knobs: Knobs, changes: Knobs) -> Expected | None:
        """Return what changes to the knobs of a run give; None where nothing predicts it."""
        seen = as_pipeline(run, LoaderSetting.of(knobs)) if run.watched else run
        return expected_of(predict(seen, **changes))

    def _loader(self, run: Run, here: LoaderSetting, setting: LoaderSetting) -> Expected | None:
        if id(run) not in self.runs:
            self.runs[id(run)] = as_pipeline(run, here) if run.watched else run
        arguments = setting.to_dict()
        changes = {name: arguments[name] for name in PREDICTED}
        prediction = predict(self.runs[id(run)], **changes)
        expected = expected_of(prediction)
        if expected is None:
            self.cannot = prediction.cannot
            return guess(run, here, setting)
        return expected


def expected_of(prediction: Prediction) -> Expected | None:
    """Return the throughput of a prediction; None where it has none."""
    if prediction.cannot or not prediction.throughput or not prediction.throughput_range:
        return None
    low, high = prediction.throughput_range
    return Expected(prediction.throughput, low, high)


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
