"""A control of a panel for each knob: a slider, a list or a switch."""

from __future__ import annotations

import html
import math
from typing import Any

import ipywidgets as widgets
import numpy as np

from labkit.knobs import Knob

MOST_ON_A_SLIDER = 300  # whole numbers that a slider of 200 px still lets one hit
# The stops of a slider over more of them: powers of two and between
STOPS = (0, *(first * 2**power for power in range(31) for first in (1, 1.5)))
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
DEVICES = ("auto", "cpu", "cuda", "mps")
WORDS = {"None": "auto", "True": "on", "False": "off"}


class Control(widgets.VBox):
    """One knob: its name and unit above, its widget below; `value` is what the spec gets."""

    def __init__(self, knob: Knob, value: Any):
        help_text = f"{knob.help}: {knob.allowed}"
        self.widget: Any = make_widget(knob, value)
        self.widget.layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget.tooltip = help_text
        unit = f" <span style='opacity:.65'>{html.escape(knob.unit)}</span>" if knob.unit else ""
        title = html.escape(help_text, quote=True)
        label = widgets.HTML(f"<span title='{title}'><b>{html.escape(knob.name)}</b>{unit}</span>")
        super().__init__([label, self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")
        self.add_class(f"labkit-knob-{knob.name}")

    @property
    def value(self) -> Any:
        """The knob's value; None stands for auto."""
        return None if self.widget.value == NONE else self.widget.value

    @value.setter
    def value(self, value: Any) -> None:
        wanted = NONE if value is None else value
        options = getattr(self.widget, "options", ())
        if options and wanted not in dict(options).values():
            self.widget.options = [*options, (shown(value), wanted)]
        self.widget.value = wanted


def make_widget(knob: Knob, value: Any) -> widgets.Widget:
    """Return the widget that suits the knob, set to `value`, unable to leave the knob's range."""
    if knob.kind == "bool":
        return widgets.Checkbox(value, description="on", indent=False)
    kind = widgets.Dropdown if knob.high is None else widgets.SelectionSlider
    stops = dict.fromkeys([*(knob.choices or DEVICES), value])
    if knob.low is not None and knob.high is not None:
        now = {value} - {None}
        high = min(knob.high, max(knob.reach or knob.high, *now, 0))
        stops = sorted({*numbers_between(knob.low, high, knob.kind), *now})
    options = [(shown(each), each) for each in stops if each is not None]
    if knob.takes_none:
        options.insert(0, ("auto" if knob.auto else "off", NONE))
    return kind(options=options, value=NONE if value is None else value)


def numbers_between(low: float, high: float, kind: str) -> list[float]:
    """Return the stops of a slider over these numbers."""
    if kind == "float":
        return [float(f"{number:.3g}") for number in np.linspace(low, high, 101)]
    if high - low <= MOST_ON_A_SLIDER:
        return [*range(math.ceil(low), int(high) + 1)]
    return [int(stop) for stop in STOPS if low <= stop <= high and stop == int(stop)]


def shown(value: object) -> str:
    """Write a knob's value as a person reads it."""
    return f"{value:g}" if isinstance(value, float) else WORDS.get(str(value), str(value))
