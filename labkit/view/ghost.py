"""What a moved slider would bring, drawn before it is run, and how right that was afterwards."""

from __future__ import annotations

import html
from dataclasses import dataclass

import ipywidgets as widgets

from labkit.diagnosis.prediction import NOT_COMPARABLE, Prediction, outcome_of, predict
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.view.controls import in_words

BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: what it would bring is drawn here, before you run it."
MARKS = {  # how a prediction's bars are marked, as CSS has a line
    "last run": "2px dotted var(--jp-ui-font-color2, #888)",
    "predicted": "2px solid #009e73",
    "came": "4px solid var(--jp-ui-font-color0, #000)",
}


@dataclass(frozen=True)
class GhostBar:
    """A predicted number: its range, and marks by name."""

    name: str
    form: str  # how its numbers are written
    low: float
    high: float
    top: float  # the number at the bar's end
    marks: dict[str, float]

    def html(self) -> str:
        """Return the bar as a row of HTML."""
        start = self.low / self.top
        wide = (self.high - self.low) / self.top
        inside = f"<i class='range' style='left:{start:.2%};width:{wide:.2%}'></i>"
        for mark, value in self.marks.items():
            look = MARKS[mark]
            inside += f"<i style='left:{value / self.top:.2%};border-left:{look}'></i>"
        value = format(self.marks["predicted"], self.form)
        text = f"{value} ({self.low:{self.form}} to {self.high:{self.form}})"
        name = html.escape(self.name)
        return f"<div class='row'><b>{name}</b><div>{inside}</div><span>{text}</span></div>"


class Ghost(widgets.HTML):
    """Draws a prediction: its ranges as bars, with marks of the run before and of what came."""

    def __init__(self):
        super().__init__()
        self.add_class("labkit-ghost")
        self.show(None, None)

    def show(
        self, found: Prediction | None, before: Run | None, came: Run | None = None
    ) -> list[float]:
        """Draw what was `found` from the run `before`; None: nothing differs from it.

        Returns the predicted busy share: low end, value and high end; [] without one.
        """
        self.bars: list[GhostBar] = []
        if before is None or found is None or found.cannot:
            self.said = BEFORE_ANY if before is None else UNMOVED
            if found is not None:
                self.said = f"No prediction: {in_words(found.why)}."
            self.value = f"<div role='status'>{html.escape(self.said)}</div>"
            return []
        self.bars = ghost_bars(found, before, came)
        rate_bar, busy_bar = self.bars
        if came is None:
            gain = rate_bar.marks["predicted"] / rate_bar.marks["last run"]
            limit = html.escape(str(found.limit))
            said = f"<b>Expected:</b> {gain:.2g}x the last run; limit: {limit}."
        else:
            said = outcome_text(found, came, rate_bar)
        self.said = said
        legend = ""
        for name in rate_bar.marks:
            look = MARKS[name]
            legend += f"<span style='border-left:{look}'>{name}</span>"
        rows = "".join(bar.html() for bar in self.bars)
        self.value = f"<div role='status'><div>{said}{legend}</div>{rows}</div>"
        return [busy_bar.low, busy_bar.marks["predicted"], busy_bar.high]


def ghost_bars(found: Prediction, before: Run, came: Run | None) -> list[GhostBar]:
    """Return the bars of a prediction: of its throughput and of its utilization."""
    known = {"last run": before, "predicted": found, "came": came}
    rates = {name: one.throughput or 0.0 for name, one in known.items() if one}
    shares = {name: one.utilization or 0.0 for name, one in known.items() if one}
    low_rate, high_rate = found.throughput_range or (0.0, 0.0)
    low_share, high_share = found.utilization_range or (0.0, 0.0)
    top = 1.05 * max(high_rate, *rates.values())
    return [
        GhostBar("samples/s", ",.0f", float(low_rate), float(high_rate), top, rates),
        GhostBar("busy", ".0%", float(low_share), float(high_share), 1.0, shares),
    ]


def outcome_text(found: Prediction, came: Run, rate: GhostBar) -> str:
    """Say how right a prediction was, as HTML."""
    predicted = rate.marks["predicted"]
    measured = rate.marks["came"]
    said = outcome_of(found, came)
    if NOT_COMPARABLE not in said:
        inside = rate.low <= measured <= rate.high
        said += f", {'inside' if inside else 'outside'} the range"
    outcome = html.escape(said)  # it may name other programs
    return f"<b>Predicted {predicted:,.0f}, came {measured:,.0f} samples/s:</b> {outcome}."


def expected(run: Run, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    if not isinstance(run.asked, Pipeline):
        return None
    is_gpu = run.machine.kind == "gpu"
    cores = run.machine.cpu_cores or 1
    old = run.asked.filled(is_gpu, cores)
    new = asked.filled(is_gpu, cores)
    changes = {name: value for name, value in new.items() if old[name] != value}
    return predict(run, **changes) if changes else None
