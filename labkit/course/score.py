"""Predict first: guesses, and the score over the course.

What was guessed and solved is kept in `labkit-score.jsonl`, in the folder the notebook runs in.
Delete it to begin again; it is never sent anywhere. Where it cannot be written, or a test runs the
notebook, the score lives for the session.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeGuard

from labkit.results.result import Result, Table
from labkit.results.run import Run

FILE_NAME = "labkit-score.jsonl"
KINDS = ("guesses", "challenges")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing

Values = dict[str, Any]  # of one guess or challenge, as JSON types
Guessed = float | str  # a number or a choice

_unwritten: list[Values] = []  # of this session, what could not be written


def keep(kind: str, name: str, **values: Any) -> None:
    """Remember `values` of one guess or challenge; never raises.

    Each call appends a line to the file, so that notebooks which play at once lose nothing.
    """
    _unwritten.append({"kind": kind, "name": name, **values})
    if _nobody_plays():
        return
    text = "\n".join(json.dumps(line, default=str) for line in _unwritten)
    with contextlib.suppress(OSError):  # a folder that is read-only: the next call tries again
        with open(FILE_NAME, "a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")  # behind a line that was cut off
        _unwritten.clear()


def read() -> dict[str, dict[str, Values]]:
    """Return {kind: {name: values}}; lines that are not of a score count as none."""
    book: dict[str, dict[str, Values]] = {kind: {} for kind in KINDS}
    for line in [*_stored(), *_unwritten]:
        if line.get("kind") in book and isinstance(line.get("name"), str):
            book[line["kind"]].setdefault(line["name"], {}).update(line)
    return book


def entry(kind: str, name: str) -> Values:
    """Return what is kept of one guess or challenge; {} where nothing is."""
    return read()[kind].get(name, {})


def _nobody_plays() -> bool:
    return any(name in os.environ for name in QUIET)


def _stored() -> Iterator[Values]:
    """Yield the lines of the file that can be read."""
    with contextlib.suppress(OSError):
        text = "" if _nobody_plays() else Path(FILE_NAME).read_text("utf-8", "replace")
        for line in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                values = json.loads(line)
                if isinstance(values, dict):
                    yield values


# -- guesses ---------------------------------------------------------------------------------------


def _now() -> str:
    return datetime.now(timezone.utc).isoformat("T", "seconds")


@dataclass(repr=False)
class Guess(Result):
    """One guess: made, then settled by what was measured. Prints as one short table."""

    question: str
    value: Guessed | None
    made: str = field(default_factory=_now)
    measured: Guessed | None = None
    late: bool = False  # the run was there before the guess
    refused: str = ""  # why what was given is no guess
    published: bool = False  # others measured it

    def settle(self, measured: Any, *, of: str = "utilization", published: bool = False) -> Guess:
        """Compare the guess with what was measured.

        Args:
            measured: A number or a choice, or a Run whose attribute `of` is taken. A run that was
                started before the guess was made is shown but not scored.
            of: An attribute of the run.
            published: Others measured it, not this machine.
        """
        self.published = published
        if isinstance(measured, Run):
            self.late = bool(measured.utc) and measured.utc < self.made  # both UTC, to the second
            measured = getattr(measured, of)
        is_missing = isinstance(measured, float) and math.isnan(measured)  # a row without a number
        self.measured = None if is_missing else measured
        if self.points is not None:
            keep("guesses", self.question, guess=self.value, measured=self.measured)
        return self

    @property
    def points(self) -> int | None:
        """0 to 3, as `points` says; None where there was no guess or it came late."""
        if self.value is None or self.measured is None or self.late:
            return None
        return points(self.value, self.measured)

    def table(self) -> Table:
        """Return the guess beside what was measured, and the ratio of two numbers."""
        rows = [("your guess", "none yet" if self.value is None else shown(self.value))]
        if self.measured is not None:
            rows.append(("published" if self.published else "measured", shown(self.measured)))
            if (
                self.value
                and not isinstance(self.value, str)
                and not isinstance(self.measured, str)
            ):
                rows.append(("ratio", shown(self.measured / self.value)))
        said = "-" if self.points is None else f"{self.points} of 3"
        if self.late:
            said = "none: the run was there before the guess"
        rows.append(("points", said))
        return Table(rows, title=self.question, foot=(self.refused,), left=(0, 1))


def shown(value: Guessed) -> str:
    """Return a number or a choice as a table shows it."""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)[:60]


def guess(question: str, value: Any = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit.
        value: A finite number or a choice (a text); None or `...` skips it. Anything else is no
            guess, and the table says so.
    """
    if value is None or value is ...:
        return Guess(str(question), None)
    if not _is_guess(value):
        why = f"{value!r} is no guess: give a number, a text, or None to skip it."
        return Guess(str(question), None, refused=why)
    keep("guesses", str(question), guess=value, measured=None)
    return Guess(str(question), value)


def points(guess: Guessed, measured: Guessed) -> int:
    """Return 3 for a guess within 10 % or a right choice, 2 within 25 %, 1 within a factor of 2."""
    if isinstance(guess, str) or isinstance(measured, str):
        return 3 if guess == measured else 0
    if guess <= 0 or measured <= 0:
        return 3 if guess == measured else 0
    factor = max(guess / measured, measured / guess)
    limits = (1.1, 1.25, 2)
    return sum(factor <= limit for limit in limits)


def _is_guess(value: object) -> TypeGuard[Guessed]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return math.isfinite(value)
    return isinstance(value, str)


# -- the score -------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Score(Result):
    """The running score over the course; prints as a short table."""

    guess_points: int  # three each at the most
    guesses: int  # that were settled
    solved: int  # challenges passed
    challenges: int

    def table(self) -> Table:
        """Return the points and the challenges so far."""
        most = 3 * self.guesses
        rows = [
            ("guesses", f"{self.guess_points} of {most} points for {self.guesses} guesses"),
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
