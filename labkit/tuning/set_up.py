"""A search set up from a pipeline, a dataset or a loader, or a script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from labkit.diagnosis.loader_code import LoopCode
from labkit.instruments.loader_knobs import knobs_of
from labkit.prediction.prediction import LEAST_MAX_WORKERS
from labkit.results.hardware import check_device, machine
from labkit.results.payload import Source
from labkit.results.privacy import shown_command
from labkit.spec import KNOBS, Pipeline
from labkit.tuning.improve import Improver
from labkit.tuning.script_bench import ScriptBench
from labkit.tuning.search import Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import of_loader
from labkit.tuning.trial_bench import TrialBench
from labkit.watching.loader_call import call_of, call_with

IMPROVE_S = 2.0  # s that a run of the autopilot trains
BATCH_SIZE = 32  # for a dataset that is given without one
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
INSTEAD = "give 'module:function' that makes it"
NO_STEP = (
    "No step was given, so this is the loader's own maximum. A slower model needs fewer workers: "
    "pass step= to tune for it."
)


def tuner(
    what: Any,
    *,
    step: object = None,
    batch_size: int | None = None,
    max_workers: int | None = None,
    seconds: float,
) -> Search:
    """Return a search for a loader; raises ValueError on what cannot be tuned."""
    here = machine()
    most = _most_workers(here.cpu_cores)
    if max_workers is not None:
        most = KNOBS["num_workers"].check(max_workers)
    notes = [f"Up to {most} workers were tried (max_workers)."]
    own = knobs_of(what)  # of a DataLoader
    source = None
    if isinstance(what, Pipeline):
        if step is not None:
            raise ValueError("step: goes with a dataset of your own.")
        check_device(what.device)
        pipeline, knobs, code = what, what.to_dict(), LoopCode()
    else:
        # without a step nothing computes, and a device would only be started in vain
        pipeline = Pipeline(device="cpu" if step is None else "auto")
        notes += [NO_STEP] if step is None else []
        if own and what.batch_size is None:
            raise ValueError(
                "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
                "batch_size=... instead."
            )
        knobs = own or {"batch_size": BATCH_SIZE}
        source = source_of(what.dataset, step, what.collate_fn) if own else source_of(what, step)
        code = LoopCode.of(call_of(what) if own else call_with(what))
    if batch_size is not None:
        knobs["batch_size"] = KNOBS["batch_size"].check(batch_size)
    start = of_loader(knobs) if source else knobs | of_loader(knobs)
    pipeline.but(**start)  # a bad value is told here
    return Search(
        Tuning(
            source.name if source else repr(pipeline),
            start,
            None if source else pipeline,
            code,
            here.line,
            notes=notes,
        ),
        TrialBench(pipeline, source, seconds),
        max_workers=most,
        on_card=here.device.startswith("cuda") and pipeline.device != "cpu",
    )


def source_of(dataset: object, step: object = None, collate_fn: object = None) -> Source:
    """Make a Source; raises ValueError on what cannot be sent or loaded, saying why."""
    given = {"dataset": dataset, "step": step, "collate_fn": collate_fn}
    given = {name: part for name, part in given.items() if part is not None}
    for name, part in given.items():
        if isinstance(part, str) and not NAMED.fullmatch(part):
            raise ValueError(f"{name}={part!r}: write module:function, as in 'train:make_dataset'.")
    if not (step is None or isinstance(step, str) or callable(step)):
        raise ValueError(f"step={step!r}: give a function of one batch.")
    if isinstance(dataset, str):
        return Source.of(dataset, given, INSTEAD)
    kind = type(dataset).__name__
    has_items = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, type) or not has_items:
        raise ValueError(
            f"{kind} is not a dataset: it needs __len__ and __getitem__. Pass an instance, not the "
            "class or function. Of a stream tune the script: labkit tune -- python train.py"
        )
    return Source.of(kind, given, INSTEAD)


def _most_workers(cores: int | None) -> int:
    return max(LEAST_MAX_WORKERS, 2 * (cores or 1))


def script_tuner(command: list[str], *, seconds: float, budget: float, cwd: Path) -> Search:
    """Return a search over runs of a script, which has been run once as it is.

    Raises:
        ValueError: The command cannot be started.
        RuntimeError: No training loop with a DataLoader was seen in it, and why.
    """
    here = machine()
    bench = ScriptBench(command, seconds, cwd)
    name, command_line = shown_command(bench.command)[-1], shlex.join(bench.command)
    tuning = Tuning(name, {}, machine=here.line, command=command_line)
    bench.look(tuning)
    return Search(
        tuning,
        bench,
        max_workers=_most_workers(here.cpu_cores),
        on_card=here.device.startswith("cuda"),
        budget_s=budget,
    )


def improver(pipeline: object) -> Improver:
    """Return an autopilot for a pipeline; ValueError on what cannot be run."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"lk.improve takes a labkit.Pipeline, not {type(pipeline).__name__}: for your own data "
            "use lk.tune(dataset, step=...)."
        )
    check_device(pipeline.device)
    knobs = pipeline.to_dict()
    found = Tuning(repr(pipeline), knobs | of_loader(knobs), pipeline, machine=machine().line)
    return Improver(found, TrialBench(pipeline, None, IMPROVE_S, look=True))
