"""From a knob to a widget: every control of a panel is made from what `KNOBS` declares."""

from __future__ import annotations

import html
import os
from typing import Any

import ipywidgets as widgets

from labkit.knobs import Knob

# How far a slider goes where the knob's own range is too wide to aim in; a value beyond it that
# the pipeline has stretches the slider, and text boxes take the whole range.
REACH = {
    "num_workers": max(16, os.cpu_count() or 1),
    "prefetch_factor": 16,
    "batch_size": 256,
    "image_px": 256,
    "augment": 16,
    "accumulation_steps": 32,
    "io_ms": 20,
    "prep_ms": 200,
    "stall_ms": 1000,
    "width": 1024,
    "depth": 32,
    "seconds": 60,
}
MOST_ON_A_SLIDER = 300  # whole numbers that a slider of 200 px still lets one hit
# The stops of a slider with "auto": round numbers, and for whole ones powers of two and between
ROUND = [m * 10**p for p in range(5) for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
WHOLE = [m * 2**p for p in range(14) for m in (2, 3)]
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
DEVICES = ("auto", "cpu", "cuda", "mps")


class Control(widgets.VBox):
    """One knob: its name and unit above, its widget below; `value` is what the Pipeline gets."""

    def __init__(self, knob: Knob, value: Any):
        self.knob, self.widget = knob, make_widget(knob, value)
        self.widget.layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget.tooltip = help_text(knob)
        super().__init__([widgets.HTML(label(knob)), self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")
        self.add_class(f"labkit-knob-{knob.name}")

    @property
    def value(self) -> Any:
        """The knob's value; None stands for auto."""
        return None if self.widget.value == NONE else self.widget.value

    @value.setter
    def value(self, value: Any) -> None:
        self.widget.value = NONE if value is None else value

    def disable(self, disabled: bool) -> None:
        """Grey the widget out, or let it be used again."""
        self.widget.disabled = disabled


def make_widget(knob: Knob, value: Any) -> widgets.ValueWidget:
    """Return the widget that suits the knob, set to `value`, unable to leave the knob's range."""
    if knob.choices:
        return _dropdown(knob.choices, value)
    if knob.kind == "bool":
        return widgets.Checkbox(value, description="on", indent=False)
    if knob.pattern:
        return _dropdown([*DEVICES, *([] if value in DEVICES else [value])], value)
    if knob.auto:
        return _stops(knob, value)
    high = reach(knob, value)
    if knob.kind == "float":
        step = 10 ** len(str(int(high))) / 1000
        return widgets.FloatSlider(
            value, min=knob.low, max=high, step=step, readout_format=".1f", continuous_update=False
        )
    if high - knob.low > MOST_ON_A_SLIDER:
        return widgets.BoundedIntText(value, min=knob.low, max=knob.high)
    return widgets.IntSlider(value, min=knob.low, max=high, continuous_update=False)


def reach(knob: Knob, value: Any) -> float:
    """Return where the knob's slider ends: short of its range where that is too wide to aim in."""
    return min(knob.high, max(REACH.get(knob.name, knob.high), value or 0))


def _dropdown(choices: Any, value: Any) -> widgets.Dropdown:
    names = ["off" if choice is None else str(choice) for choice in choices]
    values = [NONE if choice is None else choice for choice in choices]
    value = NONE if value is None else value
    return widgets.Dropdown(options=list(zip(names, values, strict=True)), value=value)


def _stops(knob: Knob, value: Any) -> widgets.SelectionSlider:
    """Return a slider over round values with "auto" (None) as its first stop."""
    high = reach(knob, value)
    stops = {0, 1, *WHOLE} if knob.kind == "int" else {0.0, 0.5, *map(float, ROUND)}
    stops = {stop for stop in stops if knob.low <= stop <= high} | {value} - {None}
    options = [("auto", NONE), *((f"{stop:g}", stop) for stop in sorted(stops))]
    value = NONE if value is None else value
    return widgets.SelectionSlider(options=options, value=value, continuous_update=False)


def label(knob: Knob) -> str:
    """Return the knob's name and unit as HTML, with its help as a tooltip."""
    unit = f" <span style='opacity:.65'>{html.escape(knob.unit)}</span>" if knob.unit else ""
    tip = html.escape(help_text(knob), quote=True)
    return f"<span title='{tip}'><b>{html.escape(knob.name)}</b>{unit}</span>"


def help_text(knob: Knob) -> str:
    """Return the knob's line of help, with what "auto" stands for."""
    return f"{knob.help}; auto: {knob.auto}" if knob.auto else knob.help
