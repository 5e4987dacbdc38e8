"""What a run with other knobs is expected to give."""

from __future__ import annotations

from typing import cast

from labkit.diagnosis.prediction import predict
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.tuning.settings import Knobs, LoaderSetting
from labkit.tuning.trial import Expected
from labkit.tuning.trial_bench import ENDLESS


class Forecast:
    """Predicts knobs from a run of others."""

    def __init__(self) -> None:
        self.seen: dict[int, Run] = {}  # `predict` remembers what it found out about one object

    def __call__(self, run: Run, here: LoaderSetting, changes: Knobs) -> Expected | None:
        """Return what changes to the knobs of a run give; None where nothing predicts it."""
        if id(run) not in self.seen:
            self.seen[id(run)] = as_pipeline(run, here) if run.watched else run
        prediction = predict(self.seen[id(run)], **changes)
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
