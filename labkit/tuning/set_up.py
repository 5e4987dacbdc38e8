"""A search set up from a pipeline, a dataset or a loader, or a script."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

from labkit.diagnosis.loader_code import LoopCode
from labkit.instruments.loader_knobs import knobs_of
from labkit.knobs import Settings
from labkit.results.hardware import check_device, machine
from labkit.results.payload import Source
from labkit.results.privacy import script_of
from labkit.spec import Pipeline
from labkit.tuning.script_bench import ScriptBench
from labkit.tuning.search import Improver, ScriptSearch, Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import TrialBench, of_loader
from labkit.watching.loader_call import call_of

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
    size = {} if batch_size is None else {"batch_size": batch_size}
    if isinstance(what, Pipeline):
        if step is not None:
            raise ValueError("step: goes with a dataset of your own.")
        found, bench = of_pipeline(what.but(**size), seconds)
    else:
        found, bench = of_dataset(what, step, size, seconds)
    return Search(found, bench, machine(), max_workers)


def of_pipeline(
    pipeline: Pipeline, seconds: float, look: bool = False
) -> tuple[Tuning, TrialBench]:
    """Return a tuning of a pipeline to fill, and what runs its knobs; see `TrialBench`."""
    check_device(pipeline.device)
    knobs = pipeline.to_dict()
    found = Tuning(repr(pipeline), knobs | of_loader(knobs), pipeline)
    return found, TrialBench(pipeline, None, seconds, look)


def of_dataset(
    what: Any, step: object, size: Settings, seconds: float
) -> tuple[Tuning, TrialBench]:
    """Return a tuning of the user's dataset or DataLoader to fill, and what runs its knobs.

    `size` is the batch size to tune for, as a knob; {} for its own.
    """
    own = knobs_of(what)  # of a DataLoader
    if own and what.batch_size is None:
        raise ValueError(
            "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
            "batch_size=... instead."
        )
    source = source_of(what.dataset, step, what.collate_fn) if own else source_of(what, step)
    # without a step nothing computes, and a device would only be started in vain
    pipeline = Pipeline(device="cpu" if step is None else "auto")
    start = of_loader((own or {"batch_size": BATCH_SIZE}) | size)
    pipeline.but(**start)  # a bad value is told here
    found = Tuning(source.name, start, code=code_around(what))
    found.notes += [NO_STEP] if step is None else []
    return found, TrialBench(pipeline, source, seconds)


def code_around(what: Any) -> LoopCode:
    """Return what makes a loader, or one that shuffles a dataset, in the names of the script.

    A text names nothing there.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None or isinstance(what, str):
        return LoopCode()
    return LoopCode.of(call_of(what if knobs_of(what) else data.DataLoader(what, shuffle=True)))


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


def script_tuner(command: list[str], *, seconds: float, budget: float, cwd: Path) -> Search:
    """Return a search over runs of a script, which has been run once as it is.

    Raises:
        ValueError: The command cannot be started.
        RuntimeError: No training loop with a DataLoader was seen in it, and why.
    """
    bench = ScriptBench(command, seconds, cwd)
    name, command_line = script_of(bench.command), shlex.join(bench.command)
    found = Tuning(name, {}, command=command_line)
    bench.look(found)
    return ScriptSearch(found, bench, machine(), budget)


def improver(pipeline: object) -> Improver:
    """Return an autopilot for a pipeline; ValueError on what cannot be run."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"lk.improve takes a labkit.Pipeline, not {type(pipeline).__name__}: for your own data "
            "use lk.tune(dataset, step=...)."
        )
    return Improver(*of_pipeline(pipeline, IMPROVE_S, look=True), machine())
