"""A search set up from a pipeline, a dataset or a loader, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.analysis.prediction import predict
from labkit.bench.their_loop import knobs_of
from labkit.results.machine import machine
from labkit.spec import KNOBS, Pipeline
from labkit.tuner import source, trials
from labkit.tuner.search import Expected, Search
from labkit.tuner.tuning import Setting, Tuning, space

BATCH_SIZE = 32  # of a dataset that is given without one
LEAST_MAX_WORKERS = 12  # workers that wait take no core, so more of them than cores may help
HANDOFF_S = 1e-3  # of a batch between processes, where nothing better is known (0.5 to 2 ms here)
RANGE = 1.5  # either way, of a guess


class TuningJob:
    """A search on a pipeline or on the reader's own data, checked and ready.

    `tuning` is the result, filled as it goes.
    """

    def __init__(
        self, what: Any, *, collate_fn: Any = None, step: Any = None, batch_size: Any = None,
        baseline: dict[str, Any] | None = None, max_workers: int | None = None, seconds: float,
    ):  # fmt: skip
        """Take what `labkit.tune` was given; raises ValueError on what cannot be tuned."""
        sizes = [batch_size] if isinstance(batch_size, int) else list(batch_size or [])
        sizes = [KNOBS["batch_size"].check(size) for size in sizes]
        if isinstance(what, Pipeline):
            if collate_fn is not None or step is not None:
                raise ValueError("collate_fn and step go with a dataset of your own.")
            self.source, pipeline, name, knobs = None, what, repr(what), what.to_dict()
        else:
            if knobs_of(what):  # a DataLoader: dataset and settings can be read off it
                self.source, knobs = source.of_loader(what, step)
            else:
                self.source, knobs = source.of(what, collate_fn, step), {"batch_size": BATCH_SIZE}
            # without a step nothing computes, and a device would only be started in vain
            pipeline = Pipeline(device="auto" if "step" in self.source.parts else "cpu")
            name = self.source.name
        self.without_step = self.source is not None and "step" not in self.source.parts
        start = Setting.of(
            knobs | ({"batch_size": sizes[0]} if sizes else {}) | _checked(baseline or {})
        )
        pipeline.but(**start.to_dict())  # raises ValueError on a bad one
        sizes = list(dict.fromkeys([start.batch_size, *sizes[1:]]))
        here = machine()
        most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))
        most = most if max_workers is None else KNOBS["num_workers"].check(max_workers)
        self.tuning = Tuning(name, start, here.line)
        self.expectation = Expectation()
        self.bench = trials.Bench(pipeline, self.source, seconds)
        self.search = Search(
            self.tuning,
            [setting for setting in space(start, most, sizes) if setting != start],
            self.bench.measure,
            self.expectation,
            lambda setting, tried: trials.refusal(setting, tried, trials.Free.now()),
            self._variants(start, here.kind == "gpu" and here.device.startswith("cuda")),
        )

    def run(
        self, each: Callable[[], None] | None = None, live: Callable[[Any], None] | None = None
    ) -> Tuning:
        """Search; raises RuntimeError where the starting point cannot be measured.

        `each` is called when a trial has been run, `live` with the run that is going on, often.
        """
        self.search.each, self.bench.each = each, live
        try:
            return self.search.run()
        finally:
            if self.tuning.winner:
                self._explain()

    def _variants(self, start: Setting, cuda: bool) -> tuple[dict[str, Any], ...]:
        """Return what to try on the winner, and say why of what is not tried."""
        if cuda and not self.without_step:
            return ({"pin_memory": not start.pin_memory},)
        self.tuning.reasons["pin_memory"] = (
            "not tried: without a step that copies batches to the GPU it cannot act; with one, "
            "pin_memory=True and .to(device, non_blocking=True) are worth measuring"
            if cuda
            else "no CUDA device to copy to: page-locked memory gains nothing"
        )
        return ()

    def _explain(self) -> None:
        """Say why the settings that were not searched are as they are, and how it was predicted."""
        tuning, bench = self.tuning, self.bench
        if not tuning.winner.setting.num_workers:
            tuning.reasons["persistent_workers"] = "there are no workers to keep"
        else:
            run = tuning.winner.runs[-1]
            start_s = (run.steps_since(0)[0]["t"][1] - run.event("begin")["t_ns"]) / 1e9
            tuning.extra["persistent_workers"] = True
            tuning.reasons["persistent_workers"] = (
                f"keeps the workers from one epoch to the next: starting them, up to the first "
                f"batch, took {start_s:.2f} s; it changes nothing within an epoch"
            )
        if bench.disturbed:
            tuning.notes.append(
                f"Other programs used up to {max(bench.disturbed):.0%} of the cores in "
                f"{len(bench.disturbed)} of {bench.count} runs: their numbers are doubtful; tune "
                "again on a quiet machine."
            )
        if self.expectation.cannot:
            tuning.notes.append(
                f"Estimated from wait and compute times alone: {self.expectation.cannot}"
            )
        if self.without_step:
            tuning.notes.append(
                "No step was given, so this is the loader's own maximum. A slower model needs "
                "fewer workers: pass step= to tune for it."
            )


def _checked(baseline: dict[str, Any]) -> dict[str, Any]:
    allowed = set(Setting.__dataclass_fields__) - {"batch_size"}
    for name, value in baseline.items():
        if name not in allowed:
            raise ValueError(f"baseline {name}={value!r}: give {', '.join(sorted(allowed))}.")
    return {name: KNOBS[name].check(value) for name, value in baseline.items()}


# -- what a setting is expected to reach, from a run of another one --------------------------------


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
            if id(run) not in self.runs:
                self.runs[id(run)] = OwnRun(run, here) if run.watched else run
            self.values[key] = self._predicted(run, setting) or guess(run, here, setting)
        return self.values[key]

    def _predicted(self, run: Any, setting: Setting) -> Expected | None:
        changes = ("num_workers", "prefetch_factor", "batch_size")
        found = predict(self.runs[id(run)], **{name: getattr(setting, name) for name in changes})
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
            dataset="array", io_ms=0, xray=False, steps=trials.ENDLESS, **here.to_dict()
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


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
    best, worst = (
        setting.batch_size / max(prepare_s / workers, compute_s + HANDOFF_S)
        for workers in (
            setting.num_workers,
            min(setting.num_workers, run.machine.cpu_cores or 1),
        )
    )
    return math.sqrt(best * worst), worst / RANGE, best * RANGE
