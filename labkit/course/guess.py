"""Predict first: a guess, settled by what is measured."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TypeGuard

from labkit.api import Run
from labkit.results.measurements import short
from labkit.results.result import Result, Table

NEAR = (1.1, 1.25, 2)  # factors within which a guess earns a point each

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
        if isinstance(measured, Run):
            measured = measured.utilization
        self.measured = measured if is_guess(measured) else None  # NaN: a row without a number
        self.published = published
        return self

    @property
    def points(self) -> int | None:
        """3 for a guess within 10 % or a right choice, 2 within 25 %, 1 within a factor of 2.

        None where there was no guess, or nothing was measured.
        """
        if self.value is None or self.measured is None:
            return None
        if self.value == self.measured:
            return 3
        both = [each for each in (self.value, self.measured) if not isinstance(each, str)]
        if len(both) < 2 or min(both) <= 0:
            return 0
        return sum(max(both) <= factor * min(both) for factor in NEAR)

    def table(self) -> Table:
        """Return the guess beside what was measured, and the points; without one, a line."""
        how = "published" if self.published else "measured"
        came = "nothing" if self.measured is None else short(self.measured)
        if self.value is None:
            return Table([], title=f"{self.question}: no guess, {how} {came}")
        rows = [("your guess", short(self.value)), (how, came)]
        if self.points is not None:
            rows.append(("points", f"{self.points} of 3"))
        return Table(rows, title=self.question, left=(0, 1))


def guess(question: str, value: Guessed | None = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A finite number or a choice (a text); None or `...` skips it. Anything else is a
            ValueError.
    """
    if value is None or value is ...:
        return Guess(question, None)
    if not is_guess(value):
        raise ValueError(f"{value!r} is no guess: give a number, a text, or None to skip it.")
    return Guess(question, value)


def is_guess(value: object) -> TypeGuard[Guessed]:
    """Return whether a value is a finite number or a text."""
    return isinstance(value, str) or (isinstance(value, numbers.Real) and math.isfinite(value))
