"""The panel of an experiment: its parameters as sliders, Run, Stop, and the run before."""

from __future__ import annotations

import html
import inspect
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from labkit.results.measurements import Measurement, Measurements
from labkit.show.display import StaticFigure, allow_widgets
from labkit.show.panel_base import Rerun
from labkit.spec import EXPERIMENTS, Experiment

FAINT = "<style>.labkit-old { opacity: 0.4; }</style>"  # as live.css has it for the other panel
MOST_LINES = 8  # of a comparison: more than that is what the figure is for


class Choice(widgets.VBox):
    """One parameter: its name above, a slider over the values it may have; `value` is one."""

    def __init__(self, name: str, values: Sequence[Any], start: Any):
        self.values = list(values)
        options = [(_shown(value), index) for index, value in enumerate(self.values)]
        at = self.values.index(start) if start in self.values else 0
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in self.values)
        kind = widgets.SelectionSlider if numbers else widgets.Dropdown
        more = {"continuous_update": False} if numbers else {}
        layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget = kind(options=options, value=at, layout=layout, **more)
        super().__init__([widgets.HTML(f"<b>{html.escape(name)}</b>"), self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")
        self.add_class(f"labkit-param-{name}")

    @property
    def value(self) -> Any:
        """The value chosen, as the experiment gets it."""
        return self.values[self.widget.value]

    @value.setter
    def value(self, value: Any) -> None:
        self.widget.value = self.values.index(value)


class ProgressView(widgets.HTML):
    """How far an experiment is, as a line of text."""

    def show_before(self, before: Measurements | None) -> None:
        """The line has no place for a run before; the figure has."""

    def update(self, running: Measurements) -> None:
        """Say how far it is."""
        text = f"<code>{html.escape(running.progress)}</code>"
        if text != self.value:  # each change is a message to the browser
            self.value = text

    def finish(self, ended: Measurements) -> None:
        """Say how it ended."""
        noisy = sum(point.noisy for point in ended)
        text = f"{ended.outcome}: {len(ended)} points" + (f", {noisy} noisy" if noisy else "")
        self.value = f"<code>{html.escape(text)}</code>"


class MeasurePanel(Rerun):
    """Widgets round an experiment. `.run` is the last Measurements, `.runs` all of them."""

    terminal = "labkit.measure()"

    def __init__(self, experiment: Experiment, choices: dict[str, Sequence[Any]]):
        self._base = experiment
        controls = {
            name: Choice(name, values, experiment.params[name]) for name, values in choices.items()
        }
        super().__init__(controls, ProgressView())
        self.children = (*self.children, widgets.HTML(FAINT))
        self.say(f"{EXPERIMENTS[experiment.name].help}: set the values and press Run.")

    @property
    def experiment(self) -> Experiment:
        """What Run would measure."""
        chosen = {name: control.value for name, control in self.controls.items()}
        return Experiment(self._base.name, {**self._base.params, **chosen}, self._base.device)

    def wanted(self) -> Experiment:
        """What Run would measure."""
        return self.experiment

    def measured(self, run: Measurements) -> bool:
        """Whether it has points."""
        return len(run) > 0

    def show_result(self, run: Measurements, before: Measurements | None) -> None:
        """Show what was skipped or failed, each point against `before`, and the figure."""
        self.say(run.error or _summary(run), good=run.error is None)
        lines = [] if before is None or not len(run) else against(run, before)
        self.compare(lines + [f"not measured: {what}: {why}" for what, why in run.skipped.items()])
        if EXPERIMENTS[run.name].draw is None or not len(run) or run.error:
            self.picture(StaticFigure(b"", 0, ""))
            return
        overlay = {"before": before} if before is not None and overlays(run.name) else {}
        self.picture(StaticFigure.drawn(run.plot(**overlay)))

    def __repr__(self) -> str:
        names = ", ".join(self.controls) or "no parameter"
        return f"labkit panel of {self._base.name} for {names}: run this cell in Jupyter to use it."


def measure_panel(name: str, *, device: str = "auto", **params: Any) -> MeasurePanel:
    """Return widgets to set an experiment's parameters, measure, and compare with the last time.

    `lk.measure_panel("matrix_products", n=[16, 32, 64, 128], count=1000)`: a list makes a control
    with these values, which starts at the experiment's own default where that is among them;
    anything else is fixed. Where a value is itself a list, give a list of lists.

    Args:
        name: Which experiment.
        device: As the knob of a Pipeline.
        **params: Per parameter its values, or one fixed value.

    Raises:
        ValueError: An unknown experiment or parameter, or an empty list.
    """
    choices = {param: values for param, values in params.items() if isinstance(values, list)}
    if empty := [param for param, values in choices.items() if not values]:
        raise ValueError(f"{empty[0]}=[]: give at least one value.")
    Experiment(name, params, device)  # the names are checked before any widget is made
    fixed = {param: value for param, value in params.items() if param not in choices}
    allow_widgets()
    return MeasurePanel(Experiment(name, fixed, device), choices)


def overlays(name: str) -> bool:
    """Whether the experiment's figure can show an earlier run behind the last one."""
    return "before" in inspect.signature(EXPERIMENTS[name].draw).parameters


def against(run: Measurements, before: Measurements) -> list[str]:
    """Return what was changed since `before`, and per point how its rate (or time) changed."""
    old = before.params
    changes = [
        f"{name} {_shown(old.get(name))} → {_shown(value)}"
        for name, value in run.params.items()
        if old.get(name) != value
    ]
    lines = [f"{_label(a)}: {change}" for a, b in pairs(run, before) if (change := _change(a, b))]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more"]
    return [f"Against the run before ({', '.join(changes) or 'same values'}):", *lines]


def pairs(run: Measurements, before: Measurements) -> list[tuple[Measurement, Measurement]]:
    """Pair the points of the same case; else, where there are as many of a kind, by position."""
    found = []
    for of in dict.fromkeys(point.of for point in run):
        now, then = run.where(of), before.where(of)
        same = [(a, b) for a in now for b in then if a.case == b.case]
        if not same and len(now) == len(then):
            same = list(zip(now, then, strict=True))
        found += same
    return found


def _change(now: Measurement, then: Measurement) -> str:
    for rate, unit, scale in (("tflop_per_s", "GFLOP/s", 1e3), ("gb_per_s", "GB/s", 1)):
        a, b = getattr(now, rate), getattr(then, rate)
        if a and b:
            return f"{b * scale:.3g} → {a * scale:.3g} {unit}, {a / b:.2f}x as fast"
    if now.median_s and then.median_s:
        return f"{then.median_s * 1e3:.3g} → {now.median_s * 1e3:.3g} ms"
    return ""


def _label(point: Measurement) -> str:
    case = ", ".join(f"{name}={_shown(value)}" for name, value in point.case.items())
    return f"{point.of} ({case})" if case else point.of


def _summary(run: Measurements) -> str:
    noisy = sum(point.noisy for point in run)
    tail = f" {noisy} of {len(run)} points are noisy: small differences mean nothing."
    return f"{run.outcome.capitalize()}.{tail if noisy else ''}"


def _shown(value: Any) -> str:
    return "auto" if value is None else "on" if value is True else "off" if value is False else (
        f"{value:g}" if isinstance(value, float) else str(value)
    )  # fmt: skip
