"""A search set up from a pipeline, a dataset or a loader, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.bench.user_loop import knobs_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.loader_remedies import too_many
from labkit.diagnosis.loop_body import loads
from labkit.diagnosis.prediction import predict
from labkit.diagnosis.recommendation import LEAST_MAX_WORKERS
from labkit.process import launcher
from labkit.results.hardware import machine
from labkit.results.run import Run
from labkit.spec import KNOBS, STEP_KNOBS, Pipeline
from labkit.tuning import trials
from labkit.tuning.improve import Improver, lacking
from labkit.tuning.search import Expected, Search
from labkit.tuning.tuning import Setting, Trial, Tuning, space
from labkit.watching.loader_call import call_of, call_with

BARE = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
OWN_S = 2.0  # of steps, in a run of the autopilot
BATCH_SIZE = 32  # of a dataset that is given without one
HANDOFF_S = 1e-3  # of a batch between processes, where nothing better is known (0.5 to 2 ms here)
RANGE = 1.5  # either way, of a guess


class TuningJob:
    """A search on a pipeline or on the reader's own data; `tuning` is filled as it goes."""

    def __init__(
        self, what: Any, *, collate_fn: Any = None, step: Any = None, batch_size: Any = None,
        baseline: dict[str, Any] | None = None, max_workers: int | None = None, seconds: float,
    ):  # fmt: skip
        """Take what `labkit.tune` was given; raises ValueError on what cannot be tuned."""
        sizes = [batch_size] if isinstance(batch_size, int) else list(batch_size or [])
        sizes = [KNOBS["batch_size"].check(size) for size in sizes]
        pipeline, own, knobs = given(what, collate_fn=collate_fn, step=step)
        name = own.name if own else repr(pipeline)
        knobs |= {"batch_size": sizes[0]} if sizes else {}
        allowed = sorted(set(Setting.__dataclass_fields__) - {"batch_size"})
        for knob, value in (baseline or {}).items():
            if knob not in allowed:
                raise ValueError(f"baseline {knob}={value!r}: give {', '.join(allowed)}.")
            knobs[knob] = KNOBS[knob].check(value)
        start = Setting.of(knobs)
        pipeline.but(**start.to_dict())  # raises ValueError on a bad one
        if max_workers is not None:
            KNOBS["num_workers"].check(max_workers)
        trials.warm_up()
        here, most = machine(), max_workers
        if most is None:
            most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))
        self.tuning = tuning = Tuning(name, start, here.line, pipeline=None if own else pipeline)
        tuning.code = code_around(what, collate_fn=collate_fn)
        cap = f"Up to {most} workers were tried (max_workers)"
        tuning.notes.append(f"{cap}{too_many(most, here.cpu_cores)}.")
        self.fed = fed_rate(what)
        cuda, without_step = here.device.startswith("cuda"), own and "step" not in own.parts
        if not cuda:
            why = "no CUDA device to copy to: page-locked memory gains nothing"
        elif without_step:
            why = "not tried: it acts in a step that copies with .to(device, non_blocking=True)"
        if not cuda or without_step:
            tuning.reasons["pin_memory"] = why
        tuning.loader_alone = bool(without_step)
        if without_step:
            tuning.notes.append(
                "No step was given, so this is the loader's own maximum. A slower model needs "
                "fewer workers: pass step= to tune for it."
            )
        self.expectation, self.bench = Expectation(), trials.Bench(pipeline, own, seconds)
        settings = [s for s in space(start, most, [start.batch_size, *sizes[1:]]) if s != start]
        pinned = () if "pin_memory" in tuning.reasons else ({"pin_memory": not start.pin_memory},)
        how = self.bench.measure, self.expectation, refused, pinned, here.cpu_cores or 1
        self.search = Search(tuning, settings, *how)

    def run(
        self, each: Callable[[], None] | None = None, live: Callable[[Any], None] | None = None
    ) -> Tuning:
        """Search; `each` is called after a trial, `live` often with the run that is going on."""
        self.search.each, self.bench.each = each, live
        try:
            return self.search.run()
        finally:
            if not launcher.wanted():
                launcher.end_standby()
            if self.tuning.winner:
                self._explain()

    def _explain(self) -> None:
        """Say why what was not searched is as it is, and what the numbers are worth."""
        tuning, disturbed, why = self.tuning, self.bench.disturbed, "there are no workers to keep"
        tuning.line = tuning.winner.runs[-1].machine.line  # with the threads of the reader's step
        if tuning.winner.setting.num_workers:
            run = tuning.winner.runs[-1]
            start_s = (run.host_ns[0, 1] - run.event("begin")["t_ns"]) / 1e9
            tuning.extra["persistent_workers"] = True
            why = (
                f"keeps the workers from one epoch to the next: starting them, up to the first "
                f"batch, took {start_s:.2f} s; it changes nothing within an epoch"
            )
        tuning.reasons["persistent_workers"] = why
        if self.fed:
            good = [t for t in tuning.tried if t.rate and t.rate >= self.fed and not t.error]
            least = min(good, key=lambda trial: trial.setting.cost, default=None)
            enough = f"enough: {least.setting}" if least else "no setting gives so many"
            tuning.notes.append(
                f"Watched: never waiting, your loop takes {self.fed:,.0f} samples/s; {enough}."
            )
        if disturbed:
            tuning.notes.append(
                f"Other programs used up to {max(disturbed):.0%} of the cores in {len(disturbed)} "
                f"of {self.bench.count} runs: their numbers are doubtful."
            )
        slow = loads(tuning.winner.runs[-1])
        if slow:
            tuning.notes.append(f"{slow}.")
        if why := self.expectation.cannot:
            tuning.notes.append(f"Estimated from wait and compute times alone: {why}")


def refused(setting: Setting, tried: list[Trial]) -> str | None:
    """Return why there is no memory now for `setting`; None if there is."""
    return trials.refusal(setting, tried, *trials.free_memory())


def fed_rate(what: Any) -> float | None:
    """Return the samples/s that a watched loop could take if it never waited; None if unknown."""
    known = isinstance(what, Run) and what.watched and what.compute_ms
    return what.throughput * what.step_ms / (what.step_ms - what.wait_ms) if known else None


def given(what: Any, **parts: Any) -> tuple[Pipeline, trials.Source | None, dict[str, Any]]:
    """Return the pipeline to run, the Source where the data is the reader's own, and the knobs."""
    if isinstance(what, Run):
        what = what.asked if isinstance(what.asked, Pipeline) else what.loader
    if what is None:
        raise ValueError(
            "this Run is of a loader that is not here: give the loader itself, as in "
            "lk.tune(loader, step=...)."
        )
    if isinstance(what, Pipeline):
        if named := [name for name, part in parts.items() if part is not None]:
            raise ValueError(f"{' and '.join(named)}: goes with a dataset of your own.")
        return what, None, what.to_dict()
    if knobs_of(what):  # a DataLoader: dataset and settings can be read off it
        if parts.pop("collate_fn", None) is not None:
            raise ValueError("collate_fn: a DataLoader has its own.")
        own, knobs = trials.of_loader(what, **parts)
    else:
        own, knobs = trials.of(what, **parts), {"batch_size": BATCH_SIZE}
    # without a step nothing computes, and a device would only be started in vain
    return Pipeline(device="auto" if "step" in own.parts else "cpu"), own, knobs


def code_around(what: Any, **parts: Any) -> LoopCode:
    """Return how the caller's script writes the loader that `what` is, or makes of a dataset."""
    if isinstance(what, Run):
        what = what.loader
    if what is None or isinstance(what, Pipeline):
        return LoopCode()
    if not knobs_of(what):
        return LoopCode.of(call_with(what, **parts))
    parts.pop("collate_fn", None)
    return LoopCode.of(call_of(what, **parts))


class Expectation:
    """Predicts a setting from a run of another; guesses where there is no prediction."""

    def __init__(self):
        self.runs: dict[int, Any] = {}  # `predict` remembers what it found out about one object
        self.values: dict[tuple[int, Setting], Expected | None] = {}
        self.cannot: str | None = None  # why it had to guess

    def __call__(self, run: Any, here: Setting, setting: Setting) -> Expected | None:
        """Return samples/s of `setting` (value, low, high) from `run`, which is one of `here`."""
        key = id(run), setting
        if key not in self.values:
            seen = self.runs.setdefault(id(run), OwnRun(run, here) if run.watched else run)
            names = ("num_workers", "prefetch_factor", "batch_size")
            found = predict(seen, **{name: getattr(setting, name) for name in names})
            if found.cannot or not found.throughput:
                self.cannot = found.cannot
                self.values[key] = guess(run, here, setting)
            else:
                self.values[key] = found.throughput, *found.throughput_range
        return self.values[key]


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
    """Return what follows from waiting and computing: a step takes the longer of the two.

    Workers share the preparing: at best each brings its whole, at worst each core does.
    """
    if not run.throughput:
        return None
    step_s = setting.batch_size / run.throughput
    compute_s = step_s * (run.utilization or 0.0)
    prepare_s = step_s * here.num_workers if here.num_workers else step_s - compute_s
    best_s = worst_s = prepare_s + compute_s
    if setting.num_workers:
        cores = min(setting.num_workers, run.machine.cpu_cores or 1)
        best_s, worst_s = (
            max(prepare_s / workers, compute_s + HANDOFF_S)
            for workers in (setting.num_workers, cores)
        )
    best, worst = setting.batch_size / best_s, setting.batch_size / worst_s
    return math.sqrt(best * worst), worst / RANGE, best * RANGE


class Runner:
    """Runs a dict of knobs on a pipeline or on the reader's own data."""

    def __init__(self, pipeline: Pipeline, own: trials.Source | None, seconds: float):
        self.pipeline, self.bench = pipeline, trials.Bench(pipeline, own, seconds, look=True)

    count = property(lambda self: self.bench.count, doc="Runs that were made.")

    def measure(self, knobs: dict[str, Any], rate: float | None) -> Any:
        """Run `knobs`: (samples/s, None, run), or (None, why, run)."""
        loader = set(Setting.__dataclass_fields__)
        others = {name: value for name, value in knobs.items() if name not in loader}
        self.bench.pipeline = self.pipeline.but(**BARE | others)
        return self.bench.measure(Setting.of(knobs), rate)


def improver(
    what: Any, may_change: Any, seconds: float | None, batch_size: int | None = None, **parts: Any
) -> tuple[Improver, str, Runner]:
    """Return an autopilot for a pipeline or the reader's own data, the name of it, and its bench.

    Raises ValueError on what cannot be run.
    """
    pipeline, own, knobs = given(what, **parts)
    there = set(own.parts) if own else {"step", "model", "optimizer"}
    for name, needs in (("model", "step"), ("optimizer", "model")):
        if name in there and needs not in there:
            raise ValueError(f"{name}= goes with {needs}=: give both.")
    if batch_size and not own:
        raise ValueError(f"batch_size={batch_size}: set it in the pipeline.")
    if own and "model" in there:
        knobs |= {name: getattr(pipeline, name) for name in STEP_KNOBS}
    knobs |= {"batch_size": KNOBS["batch_size"].check(batch_size)} if batch_size else {}
    knobs |= Setting.of(knobs).to_dict()
    runner = Runner(pipeline, own, OWN_S)
    expectation, here = Expectation(), machine()
    most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))

    def search(tuning: Tuning) -> Search:
        settings = space(tuning.start, most, [tuning.start.batch_size])
        how = expectation, refused, (), here.cpu_cores or 1
        return Search(tuning, settings, lambda *_: None, *how)

    def forecast(run: Any, now: dict[str, Any], changes: dict[str, Any]) -> Expected | None:
        found = predict(OwnRun(run, Setting.of(now)) if run.watched else run, **changes)
        return found.throughput and (found.throughput, *found.throughput_range)

    def lacks(changes: dict[str, Any], run: Any, now: dict[str, Any]) -> str | None:
        needed = {"fused_optimizer": "optimizer", "precision": "step"}
        needed |= dict.fromkeys(("compile", "channels_last"), "model")
        for name in changes:
            if (part := needed.get(name)) and part not in there:
                return f"it acts on your {part}: pass {part}="
        return lacking(changes, run.machine, now)

    more = {"may_change": may_change, "seconds": seconds, "lacks": lacks}
    made = Improver(knobs, runner, forecast, search, check_start=bool(own), **more)
    return made, own.name if own else repr(what), runner
