"""What your own numbers decide: a guess, made first, and the claims of the course."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pandas

from labkit.api import Run
from labkit.results.measurements import short
from labkit.results.result import Result, Table
from labkit.spec import quick_run

STRICT = "LABKIT_STRICT"  # "1" where a claim that does not hold is an error: the tests set it
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


def check(claim: str, condition: bool, *, exact: bool = False) -> None:
    """Print `claim` with a tick where `condition` is true, else that it does not hold here.

    Args:
        claim: A sentence, such as "BF16 loses digits, not range".
        condition: Whether the numbers at hand bear it out.
        exact: The claim is about values, not about times: it holds on every machine. One about
            times that fails in a quick run (LABKIT_QUICK=1: short runs, side by side) is not
            judged.

    Raises:
        AssertionError: The claim does not hold although it was judged, and LABKIT_STRICT=1 is set,
            as by the tests.
    """
    if condition:
        print(f"✓ {claim}")
    elif quick_run() and not exact:
        print(f"- not judged in a quick run: {claim}")
    elif os.environ.get(STRICT) == "1":
        raise AssertionError(f"does not hold here: {claim}")
    else:
        print(f"✗ not on this machine: {claim}")
