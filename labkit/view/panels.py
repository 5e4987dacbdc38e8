"""`lk.panel`: one panel for a pipeline, several ranks or recorded runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit.knobs import Knob, check_names
from labkit.results.hardware import machine
from labkit.results.library import play, recorded
from labkit.results.script import script
from labkit.spec import KNOBS, Distributed, Pipeline, automatic
from labkit.view.controls import Control, expected
from labkit.view.display import StaticFigure
from labkit.view.panel import Kind, Panel

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
SPEEDS = {f"{speed:g}x": speed for speed in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)}
STARVED = "io_ms of rank 1"
MOST_LINES = 8  # of a comparison


def panel(what: Any = None, knobs: Sequence[str] = USUAL_KNOBS, **settings: Any) -> Any:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        what: A Pipeline (the default one where it is left out), a Distributed, or the name or
            names of recorded runs.
        knobs: Of a pipeline: the names of the knobs to show.
        **settings: Of a pipeline: changes to it, as in `pipeline.but(...)`. Of
            recorded runs: `folder`, where `labkit record` wrote them.
    """
    if isinstance(what, Distributed):
        return ranks_panel(what)
    if isinstance(what, (str, list, tuple)):
        return replay_panel(*([what] if isinstance(what, str) else what), **settings)
    check_names(knobs, KNOBS)
    pipeline = (what or Pipeline()).but(**settings)
    return Panel(Kind(
        what=f"for {', '.join(knobs)}",
        terminal="labkit.run()",
        controls={name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs},
        asked=lambda values: pipeline.but(**values),
        predict=expected,
        auto=lambda values: automatic(pipeline.to_dict() | values, *device_of(pipeline)),
        copies={
            "PyTorch": lambda asked, run: script(run or asked),
            "labkit": lambda asked, _run: f"lk.run(lk.{asked!r})",
        },
        warm=True,
    ))  # fmt: skip


def device_of(pipeline: Pipeline) -> tuple[bool, int]:
    """Return whether `pipeline` runs on a GPU, and the CPU's cores, as far as is known by now."""
    if pipeline.device == "cpu" or not machine.cache_info().currsize:  # asking takes 2 s
        return False, 0
    here = machine()
    return here.kind == "gpu", here.cpu_cores or 1


def ranks_panel(base: Distributed) -> Panel:
    """Return widgets to run a pipeline on several ranks: how many, their batches, one starved."""
    shared = ("batch_size", "accumulation_steps")
    controls = {name: Control(Distributed.knobs[name], getattr(base, name)) for name in base.knobs}
    controls |= {name: Control(KNOBS[name], getattr(base.pipeline, name)) for name in shared}
    controls[STARVED] = Control(replace(KNOBS["io_ms"], name=STARVED), 0, (0, 0.5, 2, 5))

    def asked(values: dict[str, Any]) -> Distributed:
        delay = values.pop(STARVED)
        pipeline = base.pipeline.but(**{name: values.pop(name) for name in shared})
        starve = {1: {"io_ms": delay}} if delay else base.starve
        return base.but(pipeline=pipeline, starve=starve, **values)

    return Panel(Kind(
        what="of ranks",
        terminal="labkit.distributed()",
        controls=controls,
        asked=asked,
        verdict=lambda run: str(run.diagnose()),
        against=lambda run, before, name="before": [
            *([f"{name}: {before.numbers}"] if before else []), f"now: {run.numbers}"
        ],
        figure=lambda run, before: StaticFigure.of(run),
    ))  # fmt: skip


def replay_panel(*names: str, folder: str | os.PathLike | None = None) -> Panel:
    """Return widgets to choose a recorded run, play it at a chosen speed and see it diagnosed.

    The choice is among `names`, or all, of the package's or of the `folder` that `labkit record`
    wrote. Raises ValueError on an unknown name.
    """
    listed = recorded(folder=folder)
    check_names(names, dict.fromkeys(r.name for r in listed), "record")
    chosen = [r for r in listed if not r.experiment and (not names or r.name in names)]
    if not chosen:
        raise ValueError("There is no recorded run to play.")
    places = {f"{r.name} · {r.title} · {r.hardware}": i for i, r in enumerate(chosen)}
    which = Control(Knob("recorded run", "int", 0, "which of them to play"), 0, places)
    pace = Knob("speed", "float", 1.0, "times the pace at which it was recorded")
    return Panel(Kind(
        what=f"of {len(chosen)} recorded runs",
        hint="Nothing here is measured: these runs were RECORDED. Choose one and press Play.",
        terminal="labkit.recorded()",
        controls={"recorded run": which, "speed": Control(pace, 1.0, SPEEDS)},
        asked=lambda values: (chosen[values["recorded run"]].path, values["speed"]),
        start=lambda asked: play(*asked),
        button="Play",
    ))  # fmt: skip
