"""`lk.run` and `lk.sweep`: start experiments and let a person watch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.results.sweep import Sweep
from labkit.show import live, wandb_log
from labkit.spec import Pipeline


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
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise ValueError(f"pipeline={pipeline!r}: give a labkit.Pipeline, or knobs by name.")
    pipeline = (pipeline or Pipeline()).but(**knobs)
    run.last = started = launch(pipeline, after=wandb_log.command(wandb))
    if wait:
        watch(started, before)
    return started


def watch(started: Run, before: Run | None = None) -> Run:
    """Show a live run until it has ended: a canvas in a notebook, a line of text elsewhere."""
    viewer = live.viewer(before)
    try:
        started.wait(each=viewer.update)
    finally:
        viewer.finish(started)
    return started


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
    viewer = live.viewer(total=len(swept.pipelines))

    def begun(setting: dict[str, Any]) -> None:
        viewer.next(", ".join(f"{name}={value!r}" for name, value in setting.items()))

    def each(run: Run) -> None:
        if run is swept.runs[-1]:  # of several at once, the one that began last is shown
            viewer.update(run)

    try:
        swept.measure(launch, each, begun)
    finally:
        viewer.finish(swept)
    return swept
