"""What a panel's sliders would bring, drawn before the run and beside what came of it."""

from __future__ import annotations

import html
import re

from labkit.analysis.prediction import Prediction, predict
from labkit.results.run import Run
from labkit.spec import Pipeline

BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: what it would bring is drawn here, before you run it."
WORDS = {"None": "auto", "True": "on", "False": "off"}
BOX = "position:absolute;top:0;bottom:0;left:{:.1f}%;"
BAND = BOX + "width:{:.1f}%;background:#009e73;opacity:.35"
TICK = BOX + "border-left:{}"  # its place and its line
LINES = {
    "last run": "2px dotted var(--jp-ui-font-color2,#888)",
    "predicted": "2px solid #009e73",
    "came": "4px solid var(--jp-ui-font-color0,#000)",
}


def expected(run: Run, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    old, new = run.asked.filled(), asked.filled()
    changes = {name: value for name, value in new.items() if old[name] != value}
    return predict(run, **changes) if changes else None


def in_words(text: str) -> str:
    """Write a message about knobs as their controls show them: "prefetch_factor auto"."""
    pair = r"\b(\w+)=('?[\w.]*\w'?)"
    return re.sub(pair, lambda found: f"{found[1]} {WORDS.get(found[2], found[2])}", text)


def drawn(found: Prediction, before: Run, came: Run | None = None) -> str:
    """Return the HTML of a prediction: two bars with its ranges, and marks of both runs."""
    if found.cannot:
        return sentence(in_words(found.cannot.removeprefix("cannot predict: ")), "No prediction: ")
    came = came if came and came.throughput else None
    rates = (before.throughput, found.throughput, came and came.throughput)
    shares = (before.utilization, found.utilization, came and came.utilization)
    top = 1.05 * max(found.throughput_range[1], *filter(None, rates))
    ratio = found.throughput / before.throughput
    rows = [
        _row("samples/s", rates, found.throughput_range, top, "{:,.0f}"),
        _row("busy", shares, found.utilization_range, 1.0, "{:.0%}"),
    ]
    if came:
        off, points = found.throughput / came.throughput - 1, found.utilization - came.utilization
        low, high = found.throughput_range
        inside = "inside" if low <= came.throughput <= high else "outside"
        title = f"Predicted {found.throughput:,.0f}, came {came.throughput:,.0f} samples/s: "
        said = f"{off:+.0%}, {inside} the range; busy {100 * points:+.0f} points."
    else:
        title, said = "Expected: ", f"{ratio:.2g}x the last run; limit: {found.limit}."
    keys = "".join(
        f"<span style='border-left:{line}'>{name}</span>"
        for name, line in LINES.items()
        if came or name != "came"
    )
    return sentence(said, title, keys) + "".join(rows)


def sentence(text: str, title: str = "", keys: str = "") -> str:
    """Return one line of HTML: `text` behind its `title`, and the key of the marks (HTML)."""
    return f"<div class='labkit-ghost'><b>{title}</b>{html.escape(text)}{keys}</div>"


def _row(name: str, values: tuple, ends: tuple[float, float], top: float, form: str) -> str:
    low, high = (100 * end / top for end in ends)
    marks = "".join(
        f"<i style='{TICK.format(100 * value / top, line)}'></i>"
        for value, line in zip(values, LINES.values(), strict=True)
        if value is not None
    )
    said = f"{form.format(values[1])} ({form.format(ends[0])} to {form.format(ends[1])})"
    return (
        "<div style='display:flex;gap:8px;line-height:18px'>"
        f"<span style='flex:0 0 5em'>{name}</span><span style='position:relative;flex:1 1 6em;"
        "height:12px;margin-top:3px;background:var(--jp-layout-color2,#eee)'>"
        f"<i style='{BAND.format(low, high - low)}'></i>{marks}</span>"
        f"<span style='flex:0 0 13.5em;white-space:nowrap'>{said}</span></div>"
    )
