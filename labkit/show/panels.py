"""`lk.panel`: one panel for a pipeline, an experiment, several ranks, recorded runs or a cost."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from labkit.analysis.cost import Cost, cost
from labkit.knobs import Knob, check_names
from labkit.results.library import Library, play, recorded
from labkit.results.measurements import Measurement, Measurements
from labkit.results.run import Run
from labkit.show.controls import Control, has_widget, shown
from labkit.show.display import StaticFigure, allow_widgets, stage_line, with_text
from labkit.show.panel import Kind, Panel
from labkit.spec import EXPERIMENTS, KNOBS, Distributed, Experiment, Pipeline
from labkit.wiring import above

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
WAITS_MS = (0, 5, 20, 50)
MOST_LINES = 8  # of a comparison: more than that is what the figure is for
USE_IT = "run this cell in Jupyter to use it."
PRICES = {
    name: Knob(name, kind, 0, title, unit, 0, 10**12)
    for name, kind, title, unit in (
        ("usd_per_hour", "float", "rent of the device", "USD"),
        ("usd_per_kwh", "float", "price of electricity", "USD"),
        ("kg_co2_per_kwh", "float", "carbon intensity of the grid", "kg CO2e"),
        ("samples_per_epoch", "int", "length of an epoch", "samples"),
    )
}


def panel(what: Any = None, knobs: Sequence[str] = USUAL_KNOBS, **settings: Any) -> Any:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        what: A Pipeline (the default one where it is left out), an experiment or its name, a
            Distributed, the name or names of recorded runs, or a Run, whose cost is shown.
        knobs: Of a pipeline: the names of the knobs to show.
        **settings: Of a pipeline: changes to it, as in `pipeline.but(...)`. Of an experiment: a
            knob's value, or the list of values to choose from. Else what the panel of that kind
            takes: `ranks_panel`, `replay_panel`, `cost_panel`.

    Raises:
        ValueError: A name that is no knob, or a value that is not allowed.
    """
    if isinstance(what, Run):
        return cost_panel(what, **settings)
    if isinstance(what, Distributed):
        return Panel(of_ranks(what))
    if isinstance(what, Experiment):
        return Panel(of_experiment(what, {}, set()))
    if isinstance(what, str) and what in above("experiments"):
        return measure_panel(what, **settings)
    if isinstance(what, (str, list, tuple)):
        return replay_panel(*([what] if isinstance(what, str) else what), **settings)
    return Panel(of_pipeline((what or Pipeline()).but(**settings), knobs))


def measure_panel(name: str, *, device: str = "auto", **params: Any) -> Panel:
    """Return widgets to set an experiment's knobs, measure, and compare with the last time.

    `lk.measure_panel("matrix_products", n=[16, 32, 64, 128], count=1000)`: a list makes a control
    with these values, which starts at the experiment's own default where that is among them;
    anything else is fixed. Without a list every knob gets a control. Where a value is itself a
    list, give a list of lists.

    Raises:
        ValueError: An unknown experiment or knob, a bad value, or an empty list.
    """
    lists = {knob: values for knob, values in params.items() if isinstance(values, list)}
    if empty := [knob for knob, values in lists.items() if not values]:
        raise ValueError(f"{empty[0]}=[]: give at least one value.")
    Experiment(name, {knob: values[0] for knob, values in lists.items()}, device)
    fixed = {knob: value for knob, value in params.items() if knob not in lists}
    return Panel(of_experiment(Experiment(name, fixed, device), lists, set(fixed)))


def ranks_panel(pipeline: Pipeline | None = None, **knobs: Any) -> Panel:
    """Return widgets that run a pipeline on several ranks: how many, and how they are set.

    Raises ValueError on a bad knob.
    """
    pipeline = (pipeline or Pipeline(dataset="sleep", prep_ms=0)).but(**knobs)
    return Panel(of_ranks(Distributed(pipeline)))


def replay_panel(*names: str, folder: str | os.PathLike | None = None) -> Panel:
    """Return widgets to choose a recorded run, play it at a chosen speed and see it diagnosed.

    Args:
        *names: The records to choose from; all runs with steps where left out.
        folder: What `labkit record --out FOLDER` wrote; None: what comes with the package.

    Raises:
        ValueError: A name that is not there, or no recorded run at all.
    """
    listed = recorded(folder=folder)
    if unknown := [name for name in names if name not in {r.name for r in listed}]:
        known = ", ".join(dict.fromkeys(r.name for r in listed)) or "none"
        raise ValueError(f"Unknown record {unknown[0]!r}; available: {known}.")
    chosen = [r for r in listed if not r.experiment and (not names or r.name in names)]
    if not chosen:
        raise ValueError("There is no recorded run to play.")
    return Panel(of_records(Library(chosen)))


def cost_panel(run: Run, *, before: Run | None = None) -> CostPanel:
    """Return widgets for price, grid and epoch, and the cost of a run that follows from them.

    `before` is the Run to compare it with. Raises ValueError for a run without numbers.
    """
    return CostPanel(run, before)


# -- the kinds -----------------------------------------------------------------------------------


def of_pipeline(pipeline: Pipeline, knobs: Sequence[str]) -> Kind:
    """Return what a panel of a pipeline does: these knobs of it, and its Run."""
    check_names(knobs, KNOBS)
    return Kind(
        text=f"labkit panel for {', '.join(knobs)}: {USE_IT}",
        hint="Set the knobs and press Run.",
        terminal="labkit.run()",
        controls={name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs},
        asked=lambda values: pipeline.but(**values),
        verdict=run_verdict,
        against=runs_apart,
        figure=run_figure,
    )


def of_records(recordings: Library) -> Kind:
    """Return what a panel of recorded runs does: play one of them, as if it were measured now."""
    names = {f"{r.name} · {r.title} · {r.hardware}": i for i, r in enumerate(recordings)}
    chosen = Knob("recorded run", "int", 0, "which of them to play")
    speed = Knob("speed", "float", 1.0, "times the pace at which it was recorded")
    return Kind(
        text=f"labkit panel of {len(recordings)} recorded runs: run this cell in Jupyter.",
        hint="Nothing here is measured: these runs were RECORDED. Choose one and press Play.",
        terminal="labkit.replay()",
        controls={
            "recorded run": Control(chosen, 0, names),
            "speed": Control(speed, 1.0, {f"{speed:g}x": speed for speed in SPEEDS}),
        },
        asked=lambda values: (recordings[values["recorded run"]].path, values["speed"]),
        start=lambda asked: play(*asked),
        verdict=run_verdict,
        against=runs_apart,
        figure=run_figure,
        button="Play",
    )


def of_ranks(base: Distributed) -> Kind:
    """Return what a panel of ranks does: how many, their batches, and a rank that is starved."""
    pipeline, starved = base.pipeline, "rank 1 waits (prep_ms)"
    delay = Knob("rank 1 waits", "float", 0, "how long rank 1 waits for every batch", "ms")
    own = {name: Control(Distributed.knobs[name], getattr(base, name)) for name in base.knobs}
    shared = ("batch_size", "accumulation_steps")

    def asked(values: dict[str, Any]) -> Distributed:
        starve = {1: {"prep_ms": values[starved]}} if values[starved] else {}
        if starve and pipeline.dataset != "sleep":
            raise ValueError(
                "prep_ms is a knob of dataset='sleep': give the panel such a pipeline."
            )
        knobs = {name: values[name] for name in shared}
        return Distributed(
            pipeline.but(**knobs), **{name: values[name] for name in own},
            starve=starve or base.starve, rendezvous=base.rendezvous,
        )  # fmt: skip

    def against(run: Any, before: Any) -> list[str]:
        if before is None:
            return [f"now: {run.numbers}"]
        ratio = f"now over before: {run.throughput / before.throughput:.2f}x samples/s"
        return [f"before: {before.numbers}", f"now: {run.numbers}", ratio]

    return Kind(
        text="labkit panel of ranks: run this cell in Jupyter to use it.",
        hint="Set the ranks and press Run.",
        terminal="labkit.distributed()",
        controls=own
        | {name: Control(KNOBS[name], getattr(pipeline, name)) for name in shared}
        | {starved: Control(delay, 0, WAITS_MS)},
        asked=asked,
        verdict=lambda run: str(run.diagnose()),
        against=against,
        figure=lambda run, before: StaticFigure.of(run),
    )


def of_experiment(base: Experiment, lists: Mapping[str, list], fixed: set[str]) -> Kind:
    """Return what a panel of an experiment does: its knobs, or those with a list of values."""
    known = EXPERIMENTS[base.name]
    controls = {
        name: Control(knob, base.params[name], lists.get(name))
        for name, knob in known.knobs.items()
        if (name in lists if lists else name not in fixed and has_widget(knob, base.params[name]))
    }

    def figure(run: Measurements, before: Measurements | None) -> StaticFigure:
        return StaticFigure.drawn(run.plot(before=before)) if run.has_figure else NO_FIGURE

    return Kind(
        text=f"labkit panel of {base.name} for {', '.join(controls) or 'no knob'}: {USE_IT}",
        hint=f"{known.help}: set the values and press Run.",
        terminal="labkit.measure()",
        controls=controls,
        asked=lambda values: Experiment(base.name, {**base.params, **values}, base.device),
        verdict=_how_sure,
        against=points_apart,
        figure=figure,
        measured=lambda run: len(run) > 0,
        view=LineView(),
    )


NO_FIGURE = StaticFigure(b"", 0, "")


class LineView(widgets.HTML):
    """The progress of an experiment, as a line of text."""

    def update(self, running: Measurements) -> None:
        """Say how far it is."""
        self._say(f"{stage_line(running)} · {len(running)} points")

    def finish(self, ended: Measurements) -> None:
        """Say how it ended."""
        self._say(f"{ended.outcome}: {len(ended)} points")

    def _say(self, text: str) -> None:
        if (line := f"<code>{html.escape(text)}</code>") != self.value:
            self.value = line  # each change is a message to the browser


class CostPanel(widgets.VBox):
    """Boxes for prices above the table of a run's cost. `.cost` is what it shows."""

    def __init__(self, run: Run, before: Run | None):
        allow_widgets()
        self.run, self.before = run, before
        first = cost(run, before=before)
        self._first = {name: getattr(first, name) for name in PRICES}
        self.controls = {
            name: Control(knob, self._first[name] or 0) for name, knob in PRICES.items()
        }
        self.table = widgets.HTML()
        for control in self.controls.values():
            control.widget.observe(lambda _change: self._show(), "value")
        row = widgets.HBox(
            list(self.controls.values()), layout=widgets.Layout(flex_flow="row wrap")
        )
        super().__init__([row, self.table], layout=widgets.Layout(max_width="900px"))
        self._show()

    @property
    def cost(self) -> Cost:
        """The cost at the prices that are set; one that has no default is None until it is."""
        prices = {name: control.value for name, control in self.controls.items()}
        unset = [name for name, first in self._first.items() if first is None and not prices[name]]
        return cost(self.run, before=self.before, **prices | dict.fromkeys(unset))

    def _show(self) -> None:
        self.table.value = self.cost._repr_html_()

    def __repr__(self) -> str:
        return repr(self.cost)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), repr(self))


# -- what is said of a run, and against the one before -------------------------------------------


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and where its loss stopped being one."""
    gone = [] if run.watched else [i for i, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    return f"{run.machine.kind.upper()} busy {run.busy_text}. {run.diagnose()}{nan}"


def runs_apart(run: Run, before: Run | None) -> list[str]:
    """Say what was changed since `before`, what it brought, and what could not be applied."""
    lines = [f"{name} was not applied: {why}." for name, why in run.not_applied.items()]
    if before is None:
        return lines
    old, new = before.asked.to_dict(), run.asked.to_dict()
    what = _changes(old, new) or "same knobs"
    return [f"Against the run before ({what}): {run.compare(before).verdict}", *lines]


def run_figure(run: Run, before: Run | None) -> StaticFigure:
    """Draw a run, over the one before where there is one."""
    return StaticFigure.of(run, **({} if before is None else {"before": before}))


def points_apart(run: Measurements, before: Measurements | None) -> list[str]:
    """Say what was changed since `before`, per point how its rate changed, and what is missing."""
    lines = []
    if before is not None and len(run):
        changes = _changes(before.params, run.params) or "same values"
        both = [(point, run.partner(point, before)) for point in run]
        apart = [(point, _change(point, old)) for point, old in both if old]
        lines = [f"{_label(point)}: {change}" for point, change in apart if change]
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more"]
        lines = [f"Against the run before ({changes}):", *lines]
    return lines + [f"not measured: {what}: {why}" for what, why in run.skipped.items()]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {shown(old.get(name))} → {shown(value)}"
        for name, value in new.items()
        if old.get(name) != value
    )


def _change(now: Measurement, then: Measurement) -> str:
    for rate, unit, scale in (("tflop_per_s", "GFLOP/s", 1e3), ("gb_per_s", "GB/s", 1)):
        a, b = getattr(now, rate), getattr(then, rate)
        if a and b:
            return f"{b * scale:.3g} → {a * scale:.3g} {unit}, {a / b:.2f}x as fast"
    if now.median_s and then.median_s:
        return f"{then.median_s * 1e3:.3g} → {now.median_s * 1e3:.3g} ms"
    return ""


def _label(point: Measurement) -> str:
    case = ", ".join(f"{name}={shown(value)}" for name, value in point.case.items())
    return f"{point.of} ({case})" if case else point.of


def _how_sure(run: Measurements) -> str:
    noisy = sum(point.noisy for point in run)
    if not noisy:
        return f"Measured: {len(run)} points."
    return f"NOISY: {noisy} of {len(run)} points: small differences mean nothing."
