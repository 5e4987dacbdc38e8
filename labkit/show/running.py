"""Start a run, a sweep, ranks or a replay, and let a person watch it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.results.launch import launch
from labkit.results.library import Entry, play, recorded
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.results.sweep import Sweep
from labkit.show import wandb_log
from labkit.show.live import RunDisplay
from labkit.spec import Distributed, Pipeline


def run(
    pipeline: Pipeline | None = None,
    *,
    wait: bool = True,
    wandb: bool | str | dict[str, Any] | None = None,
    before: Run | None = None,
    **knobs: Any,
) -> Run:
    """Measure a pipeline in its own process and return its Run.

    Args:
        pipeline: What to run; the default pipeline where it is left out.
        wait: Block with a live view until it has ended; False returns at once, and `run.stop()`,
            `run.wait()` and every statistic work while it goes on.
        wandb: Log to Weights & Biases when the run is over, from a process of its own: True for
            an offline run in the run's folder, a mode ("offline", "online", "disabled"), or a
            dictionary with any of `project`, `mode`, `name`.
        before: A run to draw faintly behind this one.
        **knobs: Changes to `pipeline`, as in `pipeline.but(...)`.

    Raises:
        ValueError: A bad knob or wandb setting, before anything starts.
        KeyboardInterrupt: While waiting; the run has been stopped first, and what it did is in
            `lk.run.last`.
    """
    asked = pipeline_with(pipeline, knobs)
    run.last = started = launch(asked, after=wandb_log.command(wandb))
    return follow(started, before) if wait else started


def distributed(
    pipeline: Pipeline | None = None,
    *,
    ranks: int = 2,
    no_sync: bool = False,
    starve: Mapping[int, Mapping[str, Any]] | None = None,
    rendezvous: Mapping[str, Any] | None = None,
    wait: bool = True,
    **knobs: Any,
) -> Ranks:
    """Run a pipeline on several ranks under DistributedDataParallel and return its Ranks.

    The ranks are started by PyTorch's own launcher (torchrun), gloo on a CPU and nccl on GPUs, in
    processes that end with the kernel. `lk.distributed(pipeline, ranks=2)`.

    Args:
        pipeline: What every rank runs; its batch_size is each rank's own.
        ranks: Processes on this machine.
        no_sync: With accumulation_steps: exchange gradients only before an update.
        starve: {rank: {knob: value}}: ranks with another loader, such as {1: {"io_ms": 10}}.
        rendezvous: torchrun's options for several machines, such as {"nnodes": 2, "node_rank": 0,
            "rdzv_backend": "c10d", "rdzv_endpoint": "host:29500"}; start it on every machine.
        wait: Block with a live view until it has ended; False returns at once.
        **knobs: Changes to `pipeline`, as in `pipeline.but(...)`.

    Raises:
        ValueError: A bad value, before anything starts.
        RuntimeError: Where torchrun does not run (Windows).
        KeyboardInterrupt: While waiting; all ranks have been stopped first.
    """
    asked = pipeline_with(pipeline, knobs)
    started = launch(Distributed(asked, ranks, no_sync, starve or {}, rendezvous or {}))
    distributed.last = started
    return follow(started) if wait else started


def replay(
    what: str | os.PathLike | Run,
    *,
    speed: float = 1.0,
    wait: bool = True,
    before: Run | None = None,
) -> Run:
    """Play a recorded run through the live view, at the pace it was made or `speed` times that.

    Args:
        what: A name as in `lk.recorded()`, a recorded Run, or the path of a record.
        speed: 1 is the pace it was made at; 10 is ten times as fast.
        wait: Block until it has been played; False returns the growing Run at once.
        before: A run to draw faintly behind this one.

    Raises:
        ValueError: No such record, no steps in it, or a bad speed.
    """
    if isinstance(what, (Run, Entry)):
        path = what.path
    else:
        is_file = isinstance(what, os.PathLike) or os.path.exists(what)
        path = Path(what) if is_file else recorded(what).path
    grown = play(path, speed)
    return follow(grown, before) if wait else grown


def sweep(
    pipeline: Pipeline | None = None, *, devices: Sequence[str] | None = None, **knobs: Any
) -> Sweep:
    """Run every combination of the given values, isolated, one at a time on a device.

    `lk.sweep(pipeline, num_workers=[0, 2, 4])`. With `devices=["cuda:0", "cuda:1"]` each of them
    takes the next setting whenever it is free; the cores are shared, so that settings that need
    many of them disturb each other. Shows progress; an interrupt keeps what has been measured
    (`lk.sweep.last`). Raises ValueError on a bad value before anything runs.
    """
    swept = Sweep(pipeline or Pipeline(), knobs, devices)
    sweep.last = swept  # what an interrupt leaves
    shown = RunDisplay()

    def begun(setting: dict[str, Any]) -> None:
        values = ", ".join(f"{name}={value!r}" for name, value in setting.items())
        shown.next(f"run {len(swept.runs) + 1} of {len(swept.pipelines)} ({values}): ")

    def each(run: Run) -> None:
        if run is swept.runs[-1]:  # of several at once, the one that began last is shown
            shown.update(run)

    try:
        swept.measure(launch, each, begun)
    finally:
        shown.finish(swept)
    return swept


def follow(started: Run | Ranks, before: Run | None = None) -> Run | Ranks:
    """Show a live run until it has ended: a canvas in a notebook, a line of text elsewhere."""
    shown = RunDisplay(before)
    try:
        started.wait(each=shown.update)
    finally:
        shown.finish(started)
    return started


def pipeline_with(pipeline: Pipeline | None, knobs: dict[str, Any]) -> Pipeline:
    """Return `pipeline`, or the default one, with some knobs changed; ValueError on a bad one."""
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise ValueError(f"pipeline={pipeline!r}: give a labkit.Pipeline, or knobs by name.")
    return (pipeline or Pipeline()).but(**knobs)
