"""Start a run, a sweep, ranks or a search, and let a person watch it."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.api import Ranks, Run, Sweep, launch
from labkit.instruments.hangs import say
from labkit.knobs import Settings
from labkit.process import folders
from labkit.results.hardware import check_device
from labkit.results.log_reader import in_notebook
from labkit.spec import Distributed, Pipeline
from labkit.stamps.interrupts import collect_interrupts
from labkit.tuning.script_bench import runnable
from labkit.tuning.search import Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.set_up import improver, script_tuner, tuner
from labkit.tuning.trial import Trial
from labkit.view.display import Display, remember
from labkit.view.live import RunDisplay
from labkit.view.live_frame import live_line

TUNES = (
    "runs `{}` again and again, with one change each, and interrupts it (as by "
    "Ctrl-C) after some seconds of training: {:.0f} s at most after the first run. What it writes "
    "by then is written {}."
)


def run(
    pipeline: Pipeline | None = None,
    *,
    wait: bool = True,
    before: Run | None = None,
    **knobs: object,
) -> Run:
    """Measure a pipeline in its own process and return its Run.

    Args:
        pipeline: What to run; the default pipeline where it is left out.
        wait: Block with a live view until it has ended; an interrupt stops the run, which a
            notebook's cell returns all the same (a script has it in `lk.run.last`). False returns
            at once: `run.stop()`, `run.wait()` and all statistics work meanwhile.
        before: A run to draw faintly behind this one.
        **knobs: Changes to `pipeline`, as in `pipeline.but(...)`; a bad one is a ValueError.
    """
    return start(run, pipeline_with(pipeline, knobs), wait, before)


def distributed(
    pipeline: Pipeline | None = None,
    *,
    ranks: int = 2,
    no_sync: bool = False,
    starve: Mapping[int, Settings] | None = None,
    wait: bool = True,
    **knobs: object,
) -> Ranks:
    """Run a pipeline on several ranks under DistributedDataParallel and return its Ranks.

    They talk over gloo on a CPU, over nccl on GPUs.

    Args:
        pipeline: What every rank runs; its batch_size is each rank's own.
        ranks: Processes, all on this machine.
        no_sync: With accumulation_steps: exchange gradients only before an update.
        starve: {rank: {knob: value}}: ranks with another loader, such as {1: {"io_ms": 10}}.
        wait, **knobs: As in `lk.run`.
    """
    each = pipeline_with(pipeline, knobs)
    return start(distributed, Distributed(each, ranks, no_sync, starve or {}), wait)


def sweep(pipeline: Pipeline | None = None, **knobs: object) -> Sweep:
    """Run every combination of the given values, isolated, one at a time.

    `lk.sweep(pipeline, num_workers=[0, 2, 4])`. Shows progress; an interrupt keeps what has been
    measured: a notebook's cell returns it (a script has it in `lk.sweep.last`). Raises ValueError
    on a bad value before anything runs.
    """
    swept = Sweep(pipeline or Pipeline(), knobs)
    for device in swept.knobs.get("device", ()):
        check_device(str(device))
    remember(sweep, swept)
    shown = RunDisplay()
    try:
        swept.measure(launch, shown.update)
    except KeyboardInterrupt:
        if not in_notebook():
            raise
    finally:
        shown.finish(swept)
    return swept


def start(
    function: Callable[..., object],
    spec: Any,
    wait: bool,
    before: Run | None = None,
) -> Any:
    """Start what a spec describes for `function`, whose `.last` it is; return its Run or Ranks.

    Where it is to `wait`, it is shown until it has ended: a canvas in a notebook, which draws the
    run `before` as well, a line of text elsewhere.
    """
    with collect_interrupts() as pressed:
        found = remember(function, launch(spec))
        if wait:
            shown = RunDisplay(before)
            try:
                found.wait(each=shown.update)
            finally:
                shown.finish(found)
            if in_notebook():
                pressed.clear()  # the run has ended: a late press must not lose it
    return found


def pipeline_with(pipeline: Pipeline | None, knobs: Mapping[str, object]) -> Pipeline:
    """Return `pipeline`, or the default one, with some knobs changed; ValueError on a bad one."""
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise ValueError(f"pipeline={pipeline!r}: give a labkit.Pipeline, or knobs by name.")
    return (pipeline or Pipeline()).but(**knobs)


def tune(
    dataset_or_pipeline: object,
    *,
    step: Callable | str | None = None,
    batch_size: int | None = None,
    max_workers: int | None = None,
    seconds: float = 1.5,
) -> Tuning:
    """Find the cheapest DataLoader settings that are as fast as the fastest.

    Isolated runs measure one setting after the other, each for as long as it tells something; a
    small gain is measured again, in turn with the start. An interrupt keeps the best so far: a
    notebook's cell returns it (a script has it in `lk.tune.last`).

    Args:
        dataset_or_pipeline: A `labkit.Pipeline`; or your own dataset, or DataLoader where it has a
            collate_fn; or "module:function", a function that returns the dataset.
        step: What your loop does with one batch, a function of it, as an object or "module:name".
            Without it nothing computes, and the loader's own throughput is what is raised.
        batch_size: The batch size to tune for; else that of the pipeline or DataLoader, or 32.
        max_workers: The most workers to try; else 12, or twice the cores where that is more.
        seconds: How long a setting is measured, s, at the most; its start comes on top.

    Raises:
        RuntimeError: The starting point cannot be measured, with the reason.
    """
    search = tuner(
        dataset_or_pipeline,
        step=step,
        batch_size=batch_size,
        max_workers=max_workers,
        seconds=seconds,
    )
    return show_search(tune, search)


def tune_script(
    command: list[str], *, seconds: float = 3.0, budget: float = 180.0, in_copy: bool = False
) -> Tuning:
    """Find what makes a training script faster, by running it with one change after the other.

    Args:
        command: The script and its arguments, as a shell takes them.
        seconds: Steady steps that are timed in each run, s.
        budget: For all runs after the first, s.
        in_copy: Whether to run it in a copy of this folder, which is removed afterwards.

    Raises:
        ValueError: The command cannot be started.
        RuntimeError: No training loop with a DataLoader was seen in it, and why.
    """
    command = runnable(command)
    place = "in a copy of this folder, which is removed" if in_copy else "here (see --cwd-copy)"
    say(TUNES.format(shlex.join(command), budget, place), by="labkit tune")
    with tempfile.TemporaryDirectory(dir=folders.home()) as scratch:
        folder = Path.cwd()
        if in_copy:
            folder = shutil.copytree(folder, Path(scratch, "copy"), symlinks=True)
        return show_search(tune, script_tuner(command, seconds=seconds, budget=budget, cwd=folder))


def improve(pipeline: Pipeline | None = None) -> Tuning:
    """Fix what is on top, measure, ask again, until nothing is worth it; show every step.

    A change is kept where it gains a tenth or more; what changes the training is not tried.
    An interrupt keeps the best so far: a notebook's cell returns it (a script has it in
    `lk.improve.last`).

    Args:
        pipeline: A `labkit.Pipeline` (the default one where it is left out). For a dataset of your
            own use `lk.tune`.

    Raises:
        ValueError: Something cannot be run, and why.
        RuntimeError: The starting point cannot be measured, with the reason.
    """
    return show_search(improve, improver(pipeline or Pipeline()))


def show_search(function: Callable[..., object], search: Search) -> Tuning:
    """Show a search until it has ended: a table of its trials, and below it the run that goes on.

    A terminal has a line for each run.
    """
    found = remember(function, search.found)
    display = Display()

    def show_run(run: Run) -> None:
        if display.due:
            now = live_line(run.data)
            display.line(now, found.table(now))

    def show_trial(trial: Trial) -> None:
        display.final("; ".join(filter(None, found.row(trial))), found.table("going on"))

    search.each = show_trial
    search.bench.each = show_run
    try:
        search.run()
    except KeyboardInterrupt:
        if not in_notebook():
            raise
    finally:
        display.final(found.headline, found.table())
    return found
