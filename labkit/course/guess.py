"""Predict first: the reader's guess is written down before the run can start."""

from __future__ import annotations

import html
import math
from datetime import datetime, timezone
from typing import Any

from labkit.course import score
from labkit.results.run import Run


class Guess:
    """One guess: made, then settled by what was measured. Prints as one short table."""

    def __init__(self, question: str, value: Any):
        self.question, self.value = question, value
        self.made = datetime.now(timezone.utc).replace(microsecond=0)
        self.measured: Any = None
        self.predicted: float | None = None
        self.late = False  # the run was there before the guess

    def settle(self, measured: Any, *, of: str = "utilization", predicted: Any = None) -> Guess:
        """Compare the guess with what was measured, and with the kit's own prediction.

        Args:
            measured: A number, a choice, or a Run, whose attribute `of` is taken. A run that was
                started before the guess was made is shown but not scored.
            of: Which attribute of the run.
            predicted: The kit's own prediction, a number or a `Prediction` with that attribute.
        """
        if isinstance(measured, Run):
            self.late = bool(measured.utc) and datetime.fromisoformat(measured.utc) < self.made
            measured = getattr(measured, of)
        self.measured = measured
        self.predicted = getattr(predicted, of, predicted)
        if self.value is not None and measured is not None and not self.late:
            values = {"guess": self.value, "measured": measured, "predicted": self.predicted}
            score.keep("guesses", self.question, **values)
        return self

    @property
    def ratio(self) -> float | None:
        """Measured over guess; None for a choice, or before it is settled."""
        numbers = (self.value, self.measured)
        if all(isinstance(n, (int, float)) for n in numbers) and self.value:
            return self.measured / self.value
        return None

    @property
    def points(self) -> int | None:
        """0 to 3, as `score.points` says; None where there was no guess or it came late."""
        if self.value is None or self.measured is None or self.late:
            return None
        return score.points(self.value, self.measured)

    def rows(self) -> list[tuple[str, str]]:
        """The table: (what, value), as text."""
        rows = [("your guess", _text(self.value) if self.value is not None else "none: skipped")]
        if self.measured is not None:
            rows.append(("measured", _text(self.measured)))
            if self.ratio is not None:
                rows.append(("ratio", f"{self.ratio:.2f}"))
            if self.predicted is not None:
                rows.append(("labkit said", _text(self.predicted)))
            if self.late:
                rows.append(("points", "none: the run was there before the guess"))
            elif self.points is not None:
                rows.append(("points", f"{self.points} of 3"))
        return rows

    def __repr__(self) -> str:
        text = ", ".join(f"{what} {value}" for what, value in self.rows())
        return f"{self.question}: {text}"

    def _repr_html_(self) -> str:
        row = "<tr><th>{}</th><td style='text-align:left'>{}</td></tr>"
        body = "".join(row.format(*map(html.escape, cells)) for cells in self.rows())
        return f"<b>{html.escape(self.question)}</b><table>{body}</table>"


def guess(question: str, value: Any = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit; the name it has in the score.
        value: A finite number or a choice (a text); None skips it.

    Raises:
        ValueError: A value that is neither.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not isinstance(value, str) and not (number and math.isfinite(value)):
        raise ValueError(f"guess {value!r}: give a number, a text, or None to skip it.")
    made = Guess(str(question), value)
    if value is not None:
        score.keep("guesses", made.question, guess=value, measured=None)
    return made


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)[:60]
