"""From a knob to a widget: every control of a panel is made from a declared knob."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from labkit.knobs import Knob

MOST_ON_A_SLIDER = 300  # whole numbers that a slider of 200 px still lets one hit
# The stops of a slider with "auto": round numbers, and for whole ones powers of two and between
ROUND = [0.0, 0.5, *(float(m * 10**p) for p in range(5) for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8))]
WHOLE = [0, 1, *(m * 2**p for p in range(14) for m in (2, 3))]
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
DEVICES = ("auto", "cpu", "cuda", "mps")


class Control(widgets.VBox):
    """One knob: its name and unit above, its widget below; `value` is what the spec gets.

    `values` limits it to some: a sequence, or {what is shown: value}.
    """

    def __init__(self, knob: Knob, value: Any, values: Sequence | Mapping | None = None):
        self.knob = knob
        self.widget = make_widget(knob, value) if values is None else chooser(values, value)
        self.widget.layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget.tooltip = f"{knob.help}; auto: {knob.auto}" if knob.auto else knob.help
        unit = f" <span style='opacity:.65'>{html.escape(knob.unit)}</span>" if knob.unit else ""
        tip, name = html.escape(self.widget.tooltip, quote=True), html.escape(knob.name)
        label = widgets.HTML(f"<span title='{tip}'><b>{name}</b>{unit}</span>")
        super().__init__([label, self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")
        self.add_class(f"labkit-knob-{knob.name.replace(' ', '-')}")

    @property
    def value(self) -> Any:
        """The knob's value; None stands for auto."""
        return None if self.widget.value == NONE else self.widget.value

    @value.setter
    def value(self, value: Any) -> None:
        self.widget.value = NONE if value is None else value

    def tell_auto(self, value: Any) -> None:
        """Show beside "auto" what it stands for; nothing where `value` is None."""
        text, kept = "auto" if value is None else f"auto ({shown(value)})", self.widget.value
        options = [(text if each == NONE else name, each) for name, each in self.widget.options]
        if options != list(self.widget.options):
            with self.widget.hold_sync():
                self.widget.options, self.widget.value = options, kept


def has_widget(knob: Knob, value: Any) -> bool:
    """Return whether there is a widget for the knob at `value`, without values to choose from."""
    known = knob.choices or knob.pattern or knob.kind == "bool" or knob.high is not None
    return bool(known) and not isinstance(value, list)


def make_widget(knob: Knob, value: Any) -> widgets.ValueWidget:
    """Return the widget that suits the knob, set to `value`, unable to leave the knob's range."""
    if knob.choices:
        values = dict.fromkeys([*([None] if knob.auto else []), *knob.choices])
        none = "auto" if knob.auto else "off"
        return chooser({none if each is None else str(each): each for each in values}, value)
    if knob.kind == "bool":
        return widgets.Checkbox(value, description="on", indent=False)
    if knob.pattern:
        return chooser(list(dict.fromkeys((*DEVICES, value))), value)
    whole = knob.kind == "int"
    high = min(knob.high, max(knob.reach or knob.high, value or 0))
    if knob.auto:
        stops = {stop for stop in (WHOLE if whole else ROUND) if knob.low <= stop <= high}
        return chooser([None, *sorted(stops | {value} - {None})], value)
    if whole and high - knob.low > MOST_ON_A_SLIDER:
        return widgets.BoundedIntText(value, min=knob.low, max=knob.high)
    if high >= 1e6:
        return widgets.BoundedFloatText(value, min=knob.low, max=high, step=0.01)
    kind = widgets.IntSlider if whole else widgets.FloatSlider
    look = {} if whole else {"step": 10 ** len(str(int(high))) / 1000, "readout_format": ".1f"}
    return kind(value, min=knob.low, max=high, **look)


def chooser(values: Sequence | Mapping, value: Any) -> widgets.ValueWidget:
    """Return a slider over numbers, else a drop-down, at `value` or at the first of them."""
    named = values if isinstance(values, Mapping) else {shown(each): each for each in values}
    options = [(name, NONE if each is None else each) for name, each in named.items()]
    known = [each for _, each in options]
    value = NONE if value is None else value
    value = value if value in known else known[0]
    numbers = all(type(each) in (int, float) for each in known if each != NONE)
    if numbers and not isinstance(values, Mapping):
        return widgets.SelectionSlider(options=options, value=value)
    return widgets.Dropdown(options=options, value=value)


def shown(value: Any) -> str:
    """Write a knob's value as a person reads it."""
    if value is None or isinstance(value, bool):
        return {None: "auto", True: "on", False: "off"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
