"""Predict first: a guess, settled by what is measured."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from labkit.api import Run
from labkit.results.measurements import short
from labkit.results.result import Result, Table

Guessed = float | str  # a number or a choice


@dataclass(repr=False)
class Guess(Result):
    """One guess: made, then settled by what was measured. Prints as one short table."""

    question: str
    value: Guessed | None
    measured: Guessed | None = None
    published: bool = False  # others measured it

    def settle(self, measured: Guessed | Run | None, *, published: bool = False) -> Guess:
        """Compare the guess with what was measured.

        Args:
            measured: A number or a choice, or a Run whose utilization is taken.
            published: Others measured it, not this machine.
        """
        value = measured.utilization if isinstance(measured, Run) else measured
        self.measured = value if is_guess(value) else None  # NaN: a row without a number
        self.published = published
        return self

    @property
    def factor(self) -> float | None:
        """How many times one of guess and measured number is the other; None without two."""
        if isinstance(self.value, str) or isinstance(self.measured, str):
            return None
        least, most = sorted((self.value or 0, self.measured or 0))
        return most / least if least > 0 else None

    def table(self) -> Table:
        """Return the guess beside what was measured; without one, a line."""
        how = "published" if self.published else "measured"
        came = "nothing" if self.measured is None else short(self.measured)
        if self.value is None:
            return Table([], title=f"{self.question}: no guess, {how} {came}")
        rows = [("your guess", short(self.value)), (how, came)]
        if self.factor is not None:
            rows.append(("off by", f"{self.factor:.2f}x"))
        return Table(rows, title=self.question, left=(0, 1))


def guess(question: str, value: Guessed | None = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A finite number or a choice (a text); None or `...` skips it. Anything else is a
            ValueError.
    """
    if value is ...:
        value = None
    if value is not None and not is_guess(value):
        raise ValueError(f"{value!r} is no guess: give a number, a text, or None to skip it.")
    return Guess(question, value)


def is_guess(value: object) -> bool:
    """Return whether a value is a finite number or a text."""
    return isinstance(value, str) or (isinstance(value, numbers.Real) and math.isfinite(value))
