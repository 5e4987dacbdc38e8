"""A search set up from a pipeline, a dataset or a loader, or a script."""

from __future__ import annotations

import shlex
from pathlib import Path

from labkit.diagnosis.loader_code import LoopCode
from labkit.prediction.prediction import LEAST_MAX_WORKERS
from labkit.results.hardware import check_device, machine
from labkit.results.privacy import shown_command
from labkit.spec import KNOBS, Pipeline
from labkit.tuning.improve import Improver
from labkit.tuning.script_bench import ScriptBench
from labkit.tuning.search import Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.source import own_data
from labkit.tuning.trial import Trial, of_loader
from labkit.tuning.trial_bench import TrialBench

IMPROVE_S = 2.0  # s that a run of the autopilot trains


def tuner(
    what: object,
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
    if isinstance(what, Pipeline):
        if step is not None:
            raise ValueError("step: goes with a dataset of your own.")
        check_device(what.device)
        pipeline, source, knobs, code = what, None, what.to_dict(), LoopCode()
    else:
        source, knobs, code = own_data(what, step)
        # without a step nothing computes, and a device would only be started in vain
        pipeline = Pipeline(device="cpu" if step is None else "auto")
        if step is None:
            notes.append(
                "No step was given, so this is the loader's own maximum. A slower model needs "
                "fewer workers: pass step= to tune for it."
            )
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


def _most_workers(cores: int | None) -> int:
    return max(LEAST_MAX_WORKERS, 2 * (cores or 1))


def script_tuner(
    command: list[str], *, seconds: float, budget: float, cwd: Path | None = None
) -> Search:
    """Return a search over runs of a script, which has been run once as it is.

    Raises:
        ValueError: The command cannot be started.
        RuntimeError: No training loop with a DataLoader was seen in it, and why.
    """
    bench = ScriptBench(command, seconds, cwd)
    first = bench.look()
    here = machine()
    start = bench.loader
    tuning = Tuning(
        shown_command(bench.command)[-1],
        start,
        code=bench.code,
        line=here.line,
        tried=[Trial(dict(start), outcomes=[first])],
        unit="samples/s" if bench.batch_size else "batches/s",
        verdict=bench.verdict,
        command=shlex.join(bench.command),
        site=Path(bench.site or "").name,
        epochs=bool(bench.epochs),
    )
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
    found = Tuning(repr(pipeline), knobs | of_loader(knobs), pipeline, line=machine().line)
    return Improver(found, TrialBench(pipeline, None, IMPROVE_S, look=True))
