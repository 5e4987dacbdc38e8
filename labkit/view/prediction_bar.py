"""What a moved slider would bring, drawn before it is run, and how right that was afterwards."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

from labkit.prediction.prediction import Prediction, predict
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData
from labkit.spec import Pipeline

BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: what it would bring is drawn here, before you run it."


def expected(run: RunData, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    old = run.asked.to_dict()
    changes = {name: value for name, value in asked.to_dict().items() if value != old[name]}
    return predict(run, **changes) if changes else None


def bars_html(found: Prediction | None, before: RunData | None, came: RunData | None = None) -> str:
    """Draw what was `found` from the run `before`: its ranges as bars, and marks of what came.

    How the marks look is in live.css, by their names.
    """
    if before is None or found is None or found.cannot:
        said = BEFORE_ANY if before is None else UNMOVED
        if found is not None:
            said = f"No prediction: {found.why}."
        return f"<div role='status'>{html.escape(said)}</div>"
    if came is None:
        gain = (found.throughput or 0.0) / (before.throughput or math.inf)
        limit = html.escape(found.limit or "unknown")
        said = f"<b>Expected:</b> {gain:.2g}x the last run; limit: {limit}."
    else:
        said = outcome_text(found, came)
    drawn = {"last-run": before, "predicted": found} | ({"came": came} if came else {})
    spans = [f"<span class='{name}'>{name.replace('-', ' ')}</span>" for name in drawn]
    rows = bar("samples/s", ",.0f", "throughput", found, drawn)
    rows += bar("busy", ".0%", "utilization", found, drawn)
    return f"<div role='status'><div>{said}{''.join(spans)}</div>{rows}</div>"


def bar(
    name: str,
    form: str,
    statistic: str,
    found: Prediction,
    drawn: Mapping[str, RunData | Prediction],
) -> str:
    """Return a row of HTML: the range of a prediction as a bar, and marks of what is drawn.

    `form` is how its numbers are written.
    """
    marks = {mark: getattr(each, statistic) or 0.0 for mark, each in drawn.items()}
    low, high = getattr(found, f"{statistic}_range") or (0.0, 0.0)
    top = 1.0 if statistic == "utilization" else 1.05 * max(high, *marks.values())
    inside = f"<i class='range' style='left:{low / top:.2%};width:{(high - low) / top:.2%}'></i>"
    for mark, value in marks.items():
        inside += f"<i class='{mark}' style='left:{value / top:.2%}'></i>"
    text = f"{marks['predicted']:{form}} ({low:{form}} to {high:{form}})"
    return f"<div class='row'><b>{name}</b><div>{inside}</div><span>{text}</span></div>"


def outcome_text(found: Prediction, came: RunData) -> str:
    """Say how right a prediction was, as HTML."""
    measured = came.throughput or 0.0
    low, high = found.throughput_range or (0.0, 0.0)
    said = f"{'inside' if low <= measured <= high else 'outside'} the range"
    if CoreUse.of(came).is_shared:
        said = "not comparable: other programs used the cores"
    return f"<b>Predicted {found.throughput:,.0f}, came {measured:,.0f} samples/s:</b> {said}."
