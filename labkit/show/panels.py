"""`lk.panel`: one panel for a pipeline, an experiment, several ranks, recorded runs or a cost."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from labkit.analysis.cost import cost
from labkit.knobs import Knob, check_names
from labkit.results.library import play, recorded
from labkit.results.machine import machine
from labkit.results.measurements import Measurement, Measurements
from labkit.results.run import Run
from labkit.results.script import script
from labkit.show.controls import Control, History, expected, has_widget, shown
from labkit.show.display import StaticFigure, stage_line
from labkit.show.panel import Kind, Panel, TextBox, changes
from labkit.spec import EXPERIMENTS, KNOBS, Distributed, Experiment, Pipeline, automatic
from labkit.wiring import above

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
SPEEDS = {f"{speed:g}x": speed for speed in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)}
STARVED = "io_ms of rank 1"
MOST_LINES = 8  # of a comparison
PRICES = (
    Knob("usd_per_hour", "float", 0, "rent of the device", "USD", 0, 10**12),
    Knob("usd_per_kwh", "float", 0, "price of electricity", "USD", 0, 10**12),
    Knob("kg_co2_per_kwh", "float", 0, "of the grid", "kg CO2e", 0, 10**12),
    Knob("samples_per_epoch", "int", 0, "an epoch", "samples", 0, 10**12),
)


def panel(what: Any = None, knobs: Sequence[str] = USUAL_KNOBS, **settings: Any) -> Any:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        what: A Pipeline (the default one where it is left out), an experiment or its name, a
            Distributed, the name or names of recorded runs, or a Run, whose cost is shown.
        knobs: Of a pipeline: the names of the knobs to show.
        **settings: Of a pipeline: changes to it, as in `pipeline.but(...)`. Of an experiment: a
            knob's value, or the list of values to choose from. Else what `replay_panel` or
            `cost_panel` takes.
    """
    if isinstance(what, Run):
        return cost_panel(what, **settings)
    if isinstance(what, Distributed):
        return ranks_panel(what)
    if isinstance(what, Experiment) or (isinstance(what, str) and what in above("experiments")):
        return measure_panel(what, **settings)
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


def measure_panel(name: str | Experiment, *, device: str = "auto", **params: Any) -> Panel:
    """Return widgets to set an experiment's knobs, measure, and compare with the last time.

    `lk.measure_panel("matrix_products", n=[16, 32, 64, 128], count=1000)`: a list (of lists, for
    such a knob) makes a control, which starts at the default where that is among them; anything
    else is fixed. Without a list every knob gets a control. Raises ValueError on bad names, values.
    """
    lists = {knob: values for knob, values in params.items() if isinstance(values, list)}
    fixed = {knob: value for knob, value in params.items() if knob not in lists}
    if [] in lists.values():
        raise ValueError(f"{params}: give at least one value.")
    base = name if isinstance(name, Experiment) else Experiment(name, fixed, device)
    Experiment(base.name, {knob: values[0] for knob, values in lists.items()})  # checks them
    known = EXPERIMENTS[base.name]
    controls = {
        name: Control(knob, base.params[name], lists.get(name))
        for name, knob in known.knobs.items()
        if (name in lists if lists else name not in fixed and has_widget(knob, base.params[name]))
    }
    return Panel(Kind(
        what=f"of {base.name} for {', '.join(controls) or 'no knob'}",
        hint=f"{known.help}: set the values and press Run.",
        terminal="labkit.measure()",
        controls=controls,
        asked=lambda values: Experiment(base.name, {**base.params, **values}, base.device),
        verdict=fastest,
        against=points_apart,
        figure=lambda run, old: run.has_figure and StaticFigure.drawn(run.plot(before=old)),
        measured=lambda run: len(run) > 0,
        view=LineView(),
        copies={"labkit": lambda asked, _run: f"lk.measure({asked.name!r}, **{asked.params!r})"},
        warm=True,
    ))  # fmt: skip


def ranks_panel(pipeline: Pipeline | Distributed | None = None, **knobs: Any) -> Panel:
    """Return widgets to run a pipeline on several ranks: how many, their batches, one starved.

    Raises ValueError on a bad knob.
    """
    if not isinstance(base := pipeline, Distributed):
        base = Distributed((base or Pipeline(dataset="sleep", prep_ms=0)).but(**knobs))
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
        terminal="labkit.replay()",
        controls={"recorded run": which, "speed": Control(pace, 1.0, SPEEDS)},
        asked=lambda values: (chosen[values["recorded run"]].path, values["speed"]),
        start=lambda asked: play(*asked),
        button="Play",
    ))  # fmt: skip


def cost_panel(run: Run, *, before: Run | None = None) -> TextBox:
    """Return boxes for price, grid and epoch above the `.cost` that follows from them.

    `before` is the Run to compare it with. Raises ValueError for a run without numbers.
    """
    first, table = cost(run, before=before), widgets.HTML()
    defaults = {knob.name: getattr(first, knob.name) for knob in PRICES}
    controls = {knob.name: Control(knob, defaults[knob.name] or 0) for knob in PRICES}
    row = widgets.HBox(list(controls.values()), layout=widgets.Layout(flex_flow="row wrap"))
    panel = TextBox("", [row, table, History(lambda: None, {})])  # that names the boxes
    panel.add_class("labkit-panel")

    def show(_change: Any = None) -> None:
        prices = {name: control.value for name, control in controls.items()}
        unset = {name: None for name in prices if not prices[name] and defaults[name] is None}
        panel.cost = cost(run, before=before, **prices | unset)
        panel.text, table.value = repr(panel.cost), panel.cost._repr_html_()

    for control in controls.values():
        control.widget.observe(show, "value")
    show()
    return panel


class LineView(widgets.HTML):
    """The progress of an experiment, as a line of text in place of a canvas."""

    def show_before(self, before: Measurements | None) -> None:
        """Show nothing of it: the figure will."""

    def update(self, run: Measurements) -> None:
        """Say how far it is, or how it ended."""
        state = stage_line(run) if run.running else run.outcome
        self.value = f"<code>{html.escape(state)} · {len(run)} points</code>"

    follow = finish = update


def points_apart(
    run: Measurements, before: Measurements | None, name: str = "the run before"
) -> list[str]:
    """Say what was changed since `before`, how each point's time changed, and what is missing."""
    lines = [f"not measured: {what}: {why}" for what, why in run.skipped.items()]
    if before is None:
        return lines
    apart = []
    for now in run:
        old = run.partner(now, before)
        if old and old.median_s and now.median_s:
            apart.append(f"{now.of}: {old.median_s * 1e3:.3g} → {now.median_s * 1e3:.3g} ms")
    said = f"Against {name} ({changes(before.params, run.params)}):"
    return [said, *apart[:MOST_LINES], *lines]


def fastest(run: Measurements) -> str:
    """Say which point is how much faster than the slowest, how sure that is, and what is next.

    Only of points that did the same work: else the figure tells what came out.
    """
    timed = [point for point in run if point.median_s]
    noisy = sum(point.noisy for point in run)
    said = f"Measured: {len(run)} points; the figure says what they mean. "
    work = [{point.flops or point.bytes for point in timed}, {point.bytes for point in timed}]
    if len(timed) > 1 and any(len(amounts) == 1 and None not in amounts for amounts in work):
        quick, *_, slow = sorted(timed, key=lambda point: point.median_s)
        said = f"{_named(quick, timed)} is {run.ratio(slow, quick):.2f}x faster than "
        said += f"{_named(slow, timed)}. "
    doubt = f"NOISY: {noisy} of {len(run)} points: small differences mean nothing. " * bool(noisy)
    again = "measure again" if noisy else "change a value and measure again: what differs is said"
    return f"{said}{doubt}Next: {again}."


def _named(point: Measurement, among: list[Measurement]) -> str:
    """Name a point by its operation, and by what of its case tells it from the others."""
    told = {n: v for n, v in point.case.items() if any(p.case.get(n) != v for p in among)}
    case = ", ".join(f"{name} {shown(value)}" for name, value in told.items())
    return f"{point.of} ({case})" if case else point.of
