"""Predict first: guesses, challenges passed, and the score over the course.

They are kept in `labkit-score.jsonl`, in the folder the notebook runs in: delete the file to begin
again; it is never sent anywhere. Where it cannot be written, or a test runs the notebook, what was
kept lives for the session.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import dataclass
from typing import Any, TypeGuard

from labkit.results.measurements import short
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.stamps.plain_file import text_of

FILE_NAME = "labkit-score.jsonl"
MAX_BYTES = 2**22  # of the file
KINDS = ("guesses", "challenges")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing
NEAR = (1.1, 1.25, 2)  # factors within which a guess earns a point each

Guessed = float | str  # a number or a choice
Values = dict[str, Any]  # what is kept of one guess or challenge, as JSON types

_unwritten: list[Values] = []  # what this session could not write


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
    return sum(max(guess / measured, measured / guess) <= factor for factor in NEAR)


def is_guess(value: object) -> TypeGuard[Guessed]:
    """Return whether a value is a finite number or a text."""
    return isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))


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


def keep(kind: str, name: str, **values: object) -> None:
    """Remember `values` of one guess or challenge; never raises.

    Each call appends a line to the file, so that notebooks which play at once lose nothing.
    """
    _unwritten.append({"kind": kind, "name": name, **values})
    if _nobody_plays():
        return
    text = "\n".join(json.dumps(line, default=str) for line in _unwritten)
    with contextlib.suppress(OSError):  # a folder that is read-only: the next call tries again
        with open(FILE_NAME, "a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")  # begins a new line: the last one may have been cut off
        _unwritten.clear()


def read() -> dict[str, dict[str, Values]]:
    """Return {kind: {name: values}}; lines that are no entries of a score are skipped."""
    text = ""
    with contextlib.suppress(OSError):
        text = "" if _nobody_plays() else text_of(FILE_NAME, MAX_BYTES)
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    book: dict[str, dict[str, Values]] = {kind: {} for kind in KINDS}
    for line in [*lines, *_unwritten]:
        if isinstance(line, dict) and line.get("kind") in KINDS:
            book[line["kind"]].setdefault(str(line.get("name")), {}).update(line)
    return book


def entry(kind: str, name: str) -> Values:
    """Return what is kept of one guess or challenge; {} where nothing is."""
    return read()[kind].get(name, {})


def _nobody_plays() -> bool:
    return any(name in os.environ for name in QUIET)
