"""What a panel's sliders would bring, drawn before the run and beside what came of it."""

from __future__ import annotations

import re
from pathlib import Path

import anywidget
import traitlets

from labkit.analysis.prediction import Prediction, predict
from labkit.results.run import Run
from labkit.spec import Pipeline

BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: what it would bring is drawn here, before you run it."
WORDS = {"None": "auto", "True": "on", "False": "off"}


class Ghost(anywidget.AnyWidget):
    """Draws a prediction: its ranges as bars, with marks of the run before and of what came."""

    _esm = Path(__file__).with_name("forecast.js")

    said = traitlets.Unicode(BEFORE_ANY).tag(sync=True)  # in place of the bars
    bars = traitlets.Dict().tag(sync=True)  # (samples/s, busy share) by what is drawn

    def show(self, found: Prediction | None, before: Run | None, came: Run | None = None) -> list:
        """Draw what was `found` from the run `before`; None: nothing differs from it.

        Returns the predicted busy share: low end, value and high end; [] without one.
        """
        self.said, self.bars = BEFORE_ANY if before is None else UNMOVED, {}
        if found is not None and found.cannot:
            self.said = f"No prediction: {in_words(found.why)}."
        elif found is not None:
            ranges = zip(found.throughput_range, found.utilization_range, strict=True)
            low, high = ((float(rate), float(share)) for rate, share in ranges)
            known = {"last run": before, "predicted": found, "came": came}
            bars = {n: (one.throughput, one.utilization) for n, one in known.items() if one}
            self.bars = {**bars, "low": low, "high": high, "limit": found.limit}
            return [low[1], found.utilization, high[1]]
        return []


def expected(run: Run, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    old, new = run.asked.filled(), asked.filled()
    changes = {name: value for name, value in new.items() if old[name] != value}
    return predict(run, **changes) if changes else None


def in_words(text: str) -> str:
    """Write a message about knobs as their controls show them: "prefetch_factor auto"."""
    pair = r"\b(\w+)=('?[\w.]*\w'?)"
    return re.sub(pair, lambda found: f"{found[1]} {WORDS.get(found[2], found[2])}", text)
