"""Predict first: a guess, settled by what is measured."""

from __future__ import annotations

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
        """Return the guess beside what was measured."""
        how = "published" if self.published else "measured"
        rows = [("your guess", short(self.value)), (how, short(self.measured))]
        both: Any = pandas.to_numeric(pandas.Series([self.value, self.measured]), "coerce")
        if (both > 0).all():
            rows.append(("off by", f"{both.max() / both.min():.2f}x"))
        return Table(rows, title=self.question, left=(0, 1))


def guess(question: str, value: Guessed | None = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A number or a choice (a text); None or `...` skips it.
    """
    return Guess(question, None if value is ... else value)
