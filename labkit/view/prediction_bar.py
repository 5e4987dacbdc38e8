"""What a moved slider would bring, said before it is run, and how right that was afterwards."""

from __future__ import annotations

import math

from labkit.prediction.prediction import Prediction, predict
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData
from labkit.spec import Pipeline

BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: this line says what it would bring, before you run it."


def expected(run: RunData, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    old = run.asked.to_dict()
    changes = {name: value for name, value in asked.to_dict().items() if value != old[name]}
    return predict(run, **changes) if changes else None


def in_words(found: Prediction | None, before: RunData | None, came: RunData | None = None) -> str:
    """Say what was `found` from the run `before`, and what came of it."""
    if before is None:
        return BEFORE_ANY
    if found is None:
        return UNMOVED
    if not found.throughput or not found.throughput_range or not found.utilization_range:
        return f"No prediction: {found.why}."
    low, high = found.throughput_range
    if came is not None:
        measured = came.throughput or 0.0
        said = f"{'inside' if low <= measured <= high else 'outside'} the range"
        if CoreUse.of(came).is_shared:
            said = "not comparable: other programs used the cores"
        return f"Predicted {found.throughput:,.0f}, came {measured:,.0f} samples/s: {said}."
    least, most = found.utilization_range
    gain = found.throughput / (before.throughput or math.inf)
    rate = f"{found.throughput:,.0f} ({low:,.0f} to {high:,.0f}) samples/s"
    busy = f"busy {found.utilization:.0%} ({least:.0%} to {most:.0%})"
    return f"Expected: {gain:.2g}x the last run, {rate}, {busy}; limit: {found.limit}."
