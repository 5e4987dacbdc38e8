"""Predict first: guesses, and the score over the course."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TypeGuard

from labkit.api import Run
from labkit.course.score_book import Guessed, keep, read
from labkit.results.result import Result, Table


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
        self.measured = measured if measured == measured else None  # NaN: a row without a number
        self.published = published
        if self.points is not None:
            keep("guesses", self.question, guess=self.value, measured=self.measured)
        return self

    @property
    def points(self) -> int | None:
        """0 to 3, as `points` says; None where there was no guess, or nothing was measured."""
        return points(self.value, self.measured)

    def table(self) -> Table:
        """Return the guess beside what was measured, and the points; without one, a line."""
        how = "published" if self.published else "measured"
        came = "nothing" if self.measured is None else shown(self.measured)
        if self.value is None:
            return Table([], title=f"{self.question}: no guess, {how} {came}")
        rows = [("your guess", shown(self.value)), (how, came)]
        if self.points is not None:
            rows.append(("points", f"{self.points} of 3"))
        return Table(rows, title=self.question, left=(0, 1))


def shown(value: Guessed) -> str:
    """Return a number or a choice as a table shows it."""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)[:60]


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
    keep("guesses", question, guess=value, measured=None)
    return Guess(question, value)


def points(guess: object, measured: object) -> int | None:
    """Return 3 for a guess within 10 % or a right choice, 2 within 25 %, 1 within a factor of 2.

    None where one of them is neither a number nor a choice.
    """
    if not is_guess(guess) or not is_guess(measured):
        return None
    if guess == measured:
        return 3
    if isinstance(guess, str) or isinstance(measured, str) or min(guess, measured) <= 0:
        return 0
    factor = max(guess / measured, measured / guess)
    return sum(factor <= limit for limit in (1.1, 1.25, 2))


def is_guess(value: object) -> TypeGuard[Guessed]:
    """Return whether a value is a finite number or a text."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return math.isfinite(value)
    return isinstance(value, str)


@dataclass(frozen=True, repr=False)
class Score(Result):
    """The running score over the course; prints as a short table."""

    guess_points: int  # three each at the most
    guesses: int  # that were settled
    solved: int  # challenges passed
    challenges: int

    def table(self) -> Table:
        """Return the points and the challenges so far."""
        rows = [
            ("guesses", f"{self.guess_points} of {3 * self.guesses} points"),
            ("challenges", f"{self.solved} passed, {self.challenges} tried"),
        ]
        return Table(rows, left=(0, 1))


def score() -> Score:
    """Return the score so far."""
    book = read()
    found = [points(each.get("guess"), each.get("measured")) for each in book["guesses"].values()]
    settled = [each for each in found if each is not None]
    solved = [each.get("passed") is True for each in book["challenges"].values()]
    return Score(sum(settled), len(settled), sum(solved), len(solved))
