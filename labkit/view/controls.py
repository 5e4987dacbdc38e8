"""A control of a panel for each knob: a slider, a list or a switch."""

from __future__ import annotations

import html

import ipywidgets as widgets

from labkit.knobs import Knob

MOST_ON_A_SLIDER = 300  # whole numbers that a slider of 200 px still lets one hit
# The stops of a slider over more of them, or over numbers and "auto": powers of two and between
STOPS = (0, 0.5, *(first * 2**power for power in range(31) for first in (1, 1.5)))
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
Value = int | float | str | None  # of a knob
DEVICES = ("auto", "cpu", "cuda", "mps")
WORDS = {"None": "auto", "True": "on", "False": "off"}


class Control(widgets.VBox):
    """One knob: its name and unit above, its widget below; `value` is what the spec gets."""

    def __init__(self, knob: Knob, value: Value):
        help_text = f"{knob.help}: {knob.allowed}"
        self.widget = make_widget(knob, value)
        self.widget.layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget.tooltip = help_text
        unit = f" <span style='opacity:.65'>{html.escape(knob.unit)}</span>" if knob.unit else ""
        title = html.escape(help_text, quote=True)
        label = widgets.HTML(f"<span title='{title}'><b>{html.escape(knob.name)}</b>{unit}</span>")
        super().__init__([label, self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")
        self.add_class(f"labkit-knob-{knob.name}")

    @property
    def value(self) -> Value:
        """The knob's value; None stands for auto."""
        return None if self.widget.value == NONE else self.widget.value

    @value.setter
    def value(self, value: Value) -> None:
        wanted = NONE if value is None else value
        options = dict(getattr(self.widget, "options", ()))
        if options and wanted not in options.values():
            self.widget.set_trait("options", [*options.items(), (shown(value), wanted)])
        self.widget.set_trait("value", wanted)


def make_widget(knob: Knob, value: Value) -> widgets.DOMWidget:
    """Return the widget that suits the knob, set to `value`, unable to leave the knob's range."""
    if knob.kind == "bool":
        return widgets.Checkbox(value, description="on", indent=False)
    unset = [("auto" if knob.auto else "off", NONE)] if knob.takes_none else []
    chosen = NONE if value is None else value
    now = [] if value is None else [value]
    if knob.low is None or knob.high is None:
        choices = dict.fromkeys([*(knob.choices or DEVICES), *now])
        named = [(shown(each), each) for each in choices if each is not None]
        return widgets.Dropdown(options=[*unset, *named], value=chosen)
    high = min(knob.high, max(knob.reach or knob.high, *now, 0))
    number = int if knob.kind == "int" else float
    if knob.auto or (number is int and high - knob.low > MOST_ON_A_SLIDER):
        stops = [
            number(stop) for stop in STOPS if knob.low <= stop <= high and number(stop) == stop
        ]
        named = [(shown(stop), stop) for stop in sorted({*stops, *now})]
        return widgets.SelectionSlider(options=[*unset, *named], value=chosen)
    if number is int:
        return widgets.IntSlider(value, min=knob.low, max=high)
    step = 10 ** len(str(int(high))) / 1000
    return widgets.FloatSlider(value, min=knob.low, max=high, step=step, readout_format=".1f")


def shown(value: object) -> str:
    """Write a knob's value as a person reads it."""
    return f"{value:g}" if isinstance(value, float) else WORDS.get(str(value), str(value))
