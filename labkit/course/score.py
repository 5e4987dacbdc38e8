"""Predict first: guesses, and the score over the course."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypeGuard

from labkit.course.score_book import Guessed, keep, read
from labkit.results.result import Result, Table
from labkit.results.run import Run


def _now() -> str:
    return datetime.now(timezone.utc).isoformat("T", "seconds")


@dataclass(repr=False)
class Guess(Result):
    """One guess: made, then settled by what was measured. Prints as one short table."""

    question: str
    value: Guessed | None
    made: str = field(default_factory=_now)
    measured: Guessed | None = None
    note: str = ""  # why it is no guess, or why it is not scored
    published: bool = False  # others measured it

    def settle(self, measured: Guessed | Run | None, *, published: bool = False) -> Guess:
        """Compare the guess with what was measured.

        Args:
            measured: A number or a choice, or a Run whose utilization is taken. A run that was
                started before the guess was made is shown but not scored.
            published: Others measured it, not this machine.
        """
        if isinstance(measured, Run):
            if measured.utc and measured.utc < self.made:  # both UTC, to the second
                self.note = "No points: the run was there before the guess."
            measured = measured.utilization
        self.measured = measured if measured == measured else None  # NaN: a row without a number
        self.published = published
        if self.points is not None:
            keep("guesses", self.question, guess=self.value, measured=self.measured)
        return self

    @property
    def points(self) -> int | None:
        """0 to 3, as `points` says; None where there was no guess or it came late."""
        if self.value is None or self.measured is None or self.note:
            return None
        return points(self.value, self.measured)

    def table(self) -> Table:
        """Return the guess beside what was measured, and their ratio; without one, a line."""
        how = "published" if self.published else "measured"
        value = self.value
        measured = self.measured
        if value is None and not self.note:
            came = "" if measured is None else f", {how} {shown(measured)}"
            return Table([], title=f"{self.question}: no guess{came}")
        rows = [("your guess", "none" if value is None else shown(value))]
        if measured is not None:
            rows.append((how, shown(measured)))
            if value and not isinstance(value, str) and not isinstance(measured, str):
                rows.append(("ratio", shown(measured / value)))
        rows.append(("points", "-" if self.points is None else f"{self.points} of 3"))
        return Table(rows, title=self.question, foot=(self.note,), left=(0, 1))


def shown(value: Guessed) -> str:
    """Return a number or a choice as a table shows it."""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)[:60]


def guess(question: str, value: object = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A finite number or a choice (a text); None or `...` skips it. Anything else is no
            guess, and the table says so.
    """
    if value is None or value is ...:
        return Guess(question, None)
    if not _is_guess(value):
        why = f"{value!r} is no guess: give a number, a text, or None to skip it."
        return Guess(question, None, note=why)
    keep("guesses", question, guess=value, measured=None)
    return Guess(question, value)


def points(guess: Guessed, measured: Guessed) -> int:
    """Return 3 for a guess within 10 % or a right choice, 2 within 25 %, 1 within a factor of 2."""
    if guess == measured:
        return 3
    if isinstance(guess, str) or isinstance(measured, str) or min(guess, measured) <= 0:
        return 0
    factor = max(guess / measured, measured / guess)
    return sum(factor <= limit for limit in (1.1, 1.25, 2))


def _is_guess(value: object) -> TypeGuard[Guessed]:
    if isinstance(value, int | float) and not isinstance(value, bool):
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
    settled = []
    for made in book["guesses"].values():
        guessed = made.get("guess")
        measured = made.get("measured")
        if _is_guess(guessed) and _is_guess(measured):
            settled.append(points(guessed, measured))
    challenges = book["challenges"].values()
    return Score(
        guess_points=sum(settled),
        guesses=len(settled),
        solved=sum(each.get("passed") is True for each in challenges),
        challenges=len(challenges),
    )
