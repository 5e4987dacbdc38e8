"""A search set up from a pipeline, a dataset or a loader."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from labkit.bench.loader_knobs import knobs_of
from labkit.diagnosis.causes.loader import too_many
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.recommendation import LEAST_MAX_WORKERS
from labkit.knobs import Settings
from labkit.results.hardware import Machine, check_device, machine
from labkit.results.privacy import shown_command
from labkit.results.run import Run
from labkit.spec import KNOBS, LOADER_KNOBS, Pipeline
from labkit.tuning.improve import Improver
from labkit.tuning.loader_search import WORTH, LoaderSearch
from labkit.tuning.memory import too_large
from labkit.tuning.script_bench import ScriptBench
from labkit.tuning.script_search import ScriptSearch
from labkit.tuning.search_result import Ladder, Tuning
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.source import Source, TorchLoader, source_of, source_of_loader
from labkit.tuning.trial import forecast
from labkit.tuning.trial_bench import TrialBench, warm_up
from labkit.watching.loader_call import call_of, call_with

IMPROVE_S = 2.0  # s that a run of the autopilot trains
BATCH_SIZE = 32  # for a dataset that is given without a batch size


@dataclass(frozen=True)
class Given:
    """What a search was asked to work on."""

    pipeline: Pipeline  # to run
    source: Source | None  # where the data is the user's own
    knobs: Settings
    code: LoopCode  # how the caller's script writes its loader

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.source.name if self.source else repr(self.pipeline)

    @property
    def asked(self) -> Pipeline | None:
        """The pipeline; None for data of the user's own."""
        return None if self.source else self.pipeline

    @property
    def loader_alone(self) -> bool:
        """Whether nothing computes: no step was given."""
        return self.source is not None and "step" not in self.source.parts


def given(what: object, *, step: object = None, **parts: object) -> Given:
    """Return what to run; raises ValueError on what cannot be run."""
    if isinstance(what, Run):
        what = what.asked if isinstance(what.asked, Pipeline) else what.loader
    if what is None:
        raise ValueError(
            "this Run is of a loader that is not here: give the loader itself, as in "
            "lk.tune(loader, step=...)."
        )
    if isinstance(what, Pipeline):
        if named := [name for name, part in {**parts, "step": step}.items() if part is not None]:
            raise ValueError(f"{' and '.join(named)}: goes with a dataset of your own.")
        check_device(what.device)
        return Given(what, None, what.to_dict(), LoopCode())
    if knobs_of(what):  # a DataLoader: dataset and settings can be read off it
        if parts.pop("collate_fn", None) is not None:
            raise ValueError("collate_fn: a DataLoader has its own.")
        source, knobs = source_of_loader(cast("TorchLoader", what), step=step, **parts)
        code = LoopCode.of(call_of(what))
    else:
        source = source_of(what, step=step, **parts)
        code = LoopCode.of(call_with(what, **parts))
        knobs: Settings = {"batch_size": BATCH_SIZE}
    # without a step nothing computes, and a device would only be started in vain
    return Given(Pipeline(device="auto" if "step" in source.parts else "cpu"), source, knobs, code)


def tuner(
    what: object,
    *,
    collate_fn: object = None,
    step: object = None,
    batch_size: int | None = None,
    baseline: Mapping[str, object] | None = None,
    max_workers: int | None = None,
    seconds: float,
) -> LoaderSearch:
    """Return a search for a loader; raises ValueError on what cannot be tuned."""
    asked = given(what, collate_fn=collate_fn, step=step)
    start = _start(asked, batch_size, baseline or {})
    if max_workers is not None:
        KNOBS["num_workers"].check(max_workers)
    warm_up()
    here = machine()
    most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))
    if max_workers is not None:
        most = max_workers
    no_pinning = _why_not_pinned(asked, here)
    tuning = Tuning(
        asked.name,
        start.to_dict(),
        asked.asked,
        asked.code,
        here.line,
        reasons={"pin_memory": no_pinning} if no_pinning else {},
        notes=_limits(asked, here, most),
        loader_alone=asked.loader_alone,
    )
    return LoaderSearch(
        tuning,
        TrialBench(asked.pipeline, asked.source, seconds),
        forecast,
        too_large,
        max_workers=most,
        try_pinned=not no_pinning,
    )


def script_tuner(
    command: list[str], *, seconds: float, budget: float, cwd: Path | None = None
) -> ScriptSearch:
    """Return a search over runs of a script, which has been run once as it is.

    Raises:
        ValueError: The command cannot be started.
        RuntimeError: No training loop with a DataLoader was seen in it, and why.
    """
    bench = ScriptBench(command, seconds, cwd)
    first = bench.first = bench.look()
    assert first.seen is not None
    known = {name: value for name, value in first.seen["loader"].items() if value is not None}
    here = machine()
    cores = here.cpu_cores or 1
    tuning = Tuning(
        shown_command(bench.command)[-1],
        LoaderSetting.of(cast("Settings", known)).to_dict(),
        line=here.line,
        tie=WORTH,
        command=shlex.join(bench.command),
        site=Path(first.seen["site"]).name,
        verdict=first.verdict,
        epochs=first.seen["epochs"],
        unit="samples/s" if bench.batch_size else "batches/s",
        code=LoopCode.of(first.watched.loop_code if first.watched else None),
    )
    return ScriptSearch(
        tuning,
        bench,
        budget_s=budget,
        cores=cores,
        max_workers=max(LEAST_MAX_WORKERS, 2 * cores),
        on_card=here.device.startswith("cuda"),
    )


def _why_not_pinned(asked: Given, here: Machine) -> str:
    """Return why pinned memory is not tried; "" where it is."""
    if not here.device.startswith("cuda"):
        return "no CUDA device to copy to: page-locked memory gains nothing"
    if asked.loader_alone:
        return "not tried: it acts in a step that copies with .to(device, non_blocking=True)"
    return ""


def _limits(asked: Given, here: Machine, most: int) -> list[str]:
    """Say what limits a search of up to `most` workers."""
    cap = f"Up to {most} workers were tried (max_workers)"
    notes = [f"{cap}{too_many(most, here.cpu_cores)}."]
    if asked.loader_alone:
        notes.append(
            "No step was given, so this is the loader's own maximum. A slower model needs "
            "fewer workers: pass step= to tune for it."
        )
    return notes


def _start(asked: Given, batch_size: int | None, baseline: Mapping[str, object]) -> LoaderSetting:
    """Return the setting to start from; raises ValueError on a bad one."""
    knobs = dict(asked.knobs)
    if batch_size is not None:
        knobs["batch_size"] = KNOBS["batch_size"].check(batch_size)
    allowed = sorted(set(LOADER_KNOBS) - {"batch_size"})
    for knob, value in baseline.items():
        if knob not in allowed:
            raise ValueError(f"baseline {knob}={value!r}: give {', '.join(allowed)}.")
        knobs[knob] = KNOBS[knob].check(value)
    start = LoaderSetting.of(knobs)
    asked.pipeline.but(**start.to_dict())
    return start


def improver(what: object, may_change: Collection[str], seconds: float | None) -> Improver:
    """Return an autopilot for a pipeline, or a Run of one; ValueError on what cannot be run."""
    pipeline = what.asked if isinstance(what, Run) else what
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"lk.improve takes a labkit.Pipeline, not {type(what).__name__}: for data of your own "
            "use lk.tune(dataset, step=...)."
        )
    check_device(pipeline.device)
    knobs = pipeline.to_dict()
    start = knobs | LoaderSetting.of(knobs).to_dict()
    ladder = Ladder(repr(pipeline), start, pipeline, line=machine().line)

    return Improver(
        ladder,
        TrialBench(pipeline, None, IMPROVE_S, look=True),
        forecast,
        too_large,
        may_change=may_change,
        seconds=seconds,
    )
