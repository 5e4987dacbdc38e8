"""The parts of a panel: a control for a knob, the list of runs, what a slider would bring."""

from __future__ import annotations

import contextlib
import html
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from labkit.diagnosis.prediction import NOT_COMPARABLE, Prediction, outcome_of, predict
from labkit.knobs import Knob
from labkit.results.event_log import EventLogResult
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.view.home_thread import HomeThread

MOST_ON_A_SLIDER = 300  # whole numbers that a slider of 200 px still lets one hit
# The stops of a slider with "auto": round numbers, and for whole ones powers of two and between
ROUND = [0.0, 0.5, *(float(m * 10**p) for p in range(5) for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8))]
WHOLE = [0, 1, *(m * 2**p for p in range(14) for m in (2, 3))]
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
DEVICES = ("auto", "cpu", "cuda", "mps")
KEPT = 8  # runs in the list; the pinned one stays in it
BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: what it would bring is drawn here, before you run it."
WORDS = {"None": "auto", "True": "on", "False": "off"}
MARKS = {  # how a prediction's bars are marked, as CSS has a line
    "last run": "2px dotted var(--jp-ui-font-color2, #888)",
    "predicted": "2px solid #009e73",
    "came": "4px solid var(--jp-ui-font-color0, #000)",
}


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
    known, value = [each for _, each in options], NONE if value is None else value
    value = value if value in known else known[0]
    numbers = all(type(each) in (int, float) for each in known if each != NONE)
    if numbers and not isinstance(values, Mapping):
        return widgets.SelectionSlider(options=options, value=value)
    return widgets.Dropdown(options=options, value=value)


def shown(value: Any) -> str:
    """Write a knob's value as a person reads it."""
    return f"{value:g}" if isinstance(value, float) else WORDS.get(str(value), str(value))


class History(anywidget.AnyWidget):
    """Lists runs, to be pinned, renamed and saved, and copies texts to the clipboard.

    It also names every control of the panel it stands in for screen readers.
    """

    _esm = Path(__file__).with_name("history.js")
    _css = Path(__file__).with_name("live.css")

    rows = traitlets.List().tag(sync=True)  # dicts: key, name, numbers, verdict, pinned, note
    copies = traitlets.List().tag(sync=True)  # what there is to copy

    def __init__(
        self,
        pinned: Callable[[], None],
        texts: dict[str, Callable[[], str]],
        home: HomeThread,
    ):
        """Call `pinned` when another run is; `texts` says what there is to copy, and makes it."""
        super().__init__(copies=list(texts))
        self.runs: dict[int, EventLogResult] = {}  # by the key of its row
        self.texts, self.when_pinned = texts, pinned
        self.on_msg(lambda _self, asked, _buffers: home.call(self.handle, **asked))

    @property
    def pinned(self) -> EventLogResult | None:
        """The run that later ones are compared with; None for the one before."""
        return next((self.runs[row["key"]] for row in self.rows if row["pinned"]), None)

    def name(self, run: EventLogResult) -> str:
        """Return what the list calls a run."""
        return next(row["name"] for row in self.rows if self.runs[row["key"]] is run)

    def add(self, run: EventLogResult, name: str, numbers: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        key = 1 + max(self.runs, default=0)
        row = {"key": key, "name": name, "numbers": numbers, "verdict": verdict}
        self.runs[key] = run
        rows = [row | {"pinned": False, "note": ""}, *self.rows]
        self.rows = [row for n, row in enumerate(rows) if n < KEPT or row["pinned"]]
        self.runs = {row["key"]: self.runs[row["key"]] for row in self.rows}

    def handle(self, do: str, key: int = 0, value: str = "") -> None:
        """Do what the page asks: "pin", "rename", "save" the run of a row, or "copy" a text."""
        if do == "copy":
            threading.Thread(target=self._copy, args=[self.texts[value]], daemon=True).start()
        elif row := next((row for row in self.rows if row["key"] == key), None):  # it may be gone
            changed = {"name": value.strip() or row["name"]}
            if do == "save":
                changed = {"note": self._saved(self.runs[key], row["name"])}
            if do == "pin":
                changed = {"pinned": not row["pinned"]}
            others = {"pinned": False} if do == "pin" else {}
            self.rows = [old | (changed if old is row else others) for old in self.rows]
            if do == "pin":
                self.when_pinned()

    def _copy(self, text: Callable[[], str]) -> None:
        with contextlib.suppress(ValueError):  # the panel says which controls do not go together
            self.send({"copy": str(text())})

    def _saved(self, run: EventLogResult, name: str) -> str:
        """Save a run beside the notebook under a name that is free; say where, or why not."""
        path = Path(f"{re.sub(r'[^0-9A-Za-z_.-]+', '-', name).strip('-.') or 'run'}.jsonl")
        path = path.with_stem(f"{path.stem}-{run.id}") if path.exists() else path
        try:
            return f"saved: {run.save(path)}"
        except (OSError, ValueError) as error:
            return f"not saved: {error}"


class Ghost(widgets.HTML):
    """Draws a prediction: its ranges as bars, with marks of the run before and of what came."""

    def __init__(self):
        super().__init__()
        self.add_class("labkit-ghost")
        self.show(None, None)

    def show(self, found: Prediction | None, before: Run | None, came: Run | None = None) -> list:
        """Draw what was `found` from the run `before`; None: nothing differs from it.

        Returns the predicted busy share: low end, value and high end; [] without one.
        """
        self.said, self.bars = BEFORE_ANY if before is None else UNMOVED, {}
        if found is None or found.cannot:
            self.said = self.said if found is None else f"No prediction: {in_words(found.why)}."
            self.value = f"<div role='status'>{html.escape(self.said)}</div>"
            return []
        ranges = zip(found.throughput_range, found.utilization_range, strict=True)
        low, high = ((float(rate), float(share)) for rate, share in ranges)
        known = {"last run": before, "predicted": found, "came": came}
        marks = {n: (one.throughput, one.utilization) for n, one in known.items() if one}
        self.bars = {**marks, "low": low, "high": high}
        rate, busy = marks["predicted"]
        said = f"<b>Expected:</b> {rate / before.throughput:.2g}x the last run; "
        said += f"limit: {found.limit}."
        if came:
            said = f"<b>Predicted {rate:,.0f}, came {came.throughput:,.0f} samples/s:</b> "
            said += outcome_of(found, came)
            if NOT_COMPARABLE not in said:
                inside = low[0] <= came.throughput <= high[0]
                said += f", {'inside' if inside else 'outside'} the range"
            said += "."
        looks = {name: f"border-left:{MARKS[name]}" for name in marks}
        legend = "".join(f"<span style='{look}'>{name}</span>" for name, look in looks.items())
        top = 1.05 * max(high[0], *(rate for rate, _ in marks.values()))
        rows = ""
        for i, (name, form, most) in enumerate([("samples/s", ",.0f", top), ("busy", ".0%", 1)]):
            start, wide = low[i] / most, (high[i] - low[i]) / most
            bar = f"<i class='range' style='left:{start:.2%};width:{wide:.2%}'></i>"
            for mark, look in looks.items():
                bar += f"<i style='left:{marks[mark][i] / most:.2%};{look}'></i>"
            text = f"{marks['predicted'][i]:{form}} ({low[i]:{form}} to {high[i]:{form}})"
            rows += f"<div class='row'><b>{name}</b><div>{bar}</div><span>{text}</span></div>"
        self.value = f"<div role='status'><div>{said}{legend}</div>{rows}</div>"
        return [low[1], busy, high[1]]


def expected(run: Run, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    here = (run.machine.kind == "gpu", run.machine.cpu_cores or 1)
    old, new = run.asked.filled(*here), asked.filled(*here)
    changes = {name: value for name, value in new.items() if old[name] != value}
    return predict(run, **changes) if changes else None


def in_words(text: str) -> str:
    """Write a message about knobs as their controls show them: "prefetch_factor auto"."""
    pair = r"\b(\w+)=('?[\w.]*\w'?)"
    return re.sub(pair, lambda found: f"{found[1]} {WORDS.get(found[2], found[2])}", text)
