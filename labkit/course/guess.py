"""Predict first: a guess, settled by what is measured."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import pandas

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
        value: Any = measured.utilization if isinstance(measured, Run) else measured
        self.measured = None if pandas.isna(value) else value  # NaN: a row without a number
        self.published = published
        return self

    def table(self) -> Table:
        """Return the guess beside what was measured; without one, a line."""
        how = "published" if self.published else "measured"
        came = "nothing" if self.measured is None else short(self.measured)
        if self.value is None:
            return Table([], title=f"{self.question}: no guess, {how} {came}")
        rows = [("your guess", short(self.value)), (how, came)]
        both = self.value, self.measured
        values: list[Any] = [each for each in both if isinstance(each, numbers.Real)]
        if len(values) == 2 and min(values) > 0:
            rows.append(("off by", f"{max(values) / min(values):.2f}x"))
        return Table(rows, title=self.question, left=(0, 1))


def guess(question: str, value: Guessed | None = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A number or a choice (a text); None or `...` skips it.
    """
    return Guess(question, None if value is ... else value)
