"""Predict first: guesses, and the score over the course.

What was guessed and solved is kept in `labkit-score.json`, in the folder the notebook runs
in. Delete it to begin again; it is never sent anywhere. Where it cannot be written, or a test runs
the notebook, the score lives for the session.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.process import family, folders
from labkit.results import saving
from labkit.results.result import Result, Table
from labkit.results.run import Run

FILE_NAME = "labkit-score.json"
KINDS = ("guesses", "challenges")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing

LOCK_WAIT_S = 2.0  # for another notebook that writes; longer than that it cannot take

_unwritten: dict[str, dict[str, Any]] = {}  # what the file could not be given, of this session


class BrokenScore(ValueError):
    """A file that is not a score file."""


def keep(kind: str, name: str, **values: Any) -> None:
    """Remember `values` of one guess or challenge; never raises.

    What other notebooks wrote meanwhile stays. A file that cannot be read is renamed, to end in
    ".bad", and a new one begun.
    """
    entry = _unwritten.setdefault(kind, {}).setdefault(name, {})
    for key, value in values.items():
        finite = not isinstance(value, float) or math.isfinite(value)  # JSON has no others
        entry[key] = value if finite else None
    if _nobody_plays():
        return
    with contextlib.suppress(OSError, ValueError), _locked():  # a folder that is read-only
        try:
            book = _stored()
        except BrokenScore:
            _put_aside(Path(FILE_NAME))
            book = {}
        text = json.dumps(_merged(book), indent=1, default=str)
        with saving.replacing(FILE_NAME) as file:
            file.write(text.encode())
        _unwritten.clear()


def read() -> dict[str, dict[str, Any]]:
    """Return {kind: {name: values}}; anything that is not a score file counts as none."""
    book: dict[str, Any] = {}
    if not _nobody_plays():
        with contextlib.suppress(OSError, BrokenScore):
            book = _stored()

    def entries(of: Any) -> dict[str, Any]:
        return {n: v for n, v in of.items() if isinstance(v, dict)} if isinstance(of, dict) else {}

    merged = _merged(book)
    return {kind: entries(merged.get(kind)) for kind in KINDS}


def _nobody_plays() -> bool:
    return any(name in os.environ for name in QUIET)


def _stored() -> dict[str, Any]:
    """Return what is in the file, {} where there is none; or raise BrokenScore, OSError."""
    try:
        text = Path(FILE_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    try:
        book = json.loads(text or b"{}", parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise BrokenScore(f"{FILE_NAME}: {error}") from None
    if not isinstance(book, dict) or not all(isinstance(book.get(k, {}), dict) for k in KINDS):
        raise BrokenScore(f"{FILE_NAME}: not a score file.")
    return book


def _merged(book: dict[str, Any]) -> dict[str, Any]:
    """Return the `book` with what of this session is not in it yet."""
    merged = dict(book)
    for kind, entries in _unwritten.items():
        merged[kind] = dict(merged.get(kind) or {})
        for name, values in entries.items():
            before = merged[kind].get(name)
            merged[kind][name] = {**(before if isinstance(before, dict) else {}), **values}
    return merged


def _put_aside(broken: Path) -> None:
    """Rename a file that cannot be read to a name that is free."""
    aside = Path(f"{broken}.bad")
    number = 1
    while aside.exists():
        number += 1
        aside = Path(f"{broken}.bad{number}")
    broken.rename(aside)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Keep other notebooks in this folder from writing within the block, for a moment."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then without
            name = hashlib.sha256(os.fsencode(os.getcwd())).hexdigest()[:16]
            folder = folders.home() / "locks"
            folder.mkdir(exist_ok=True)
            file = held.enter_context(open(folder / f"{name}.score", "ab"))
            deadline = time.monotonic() + LOCK_WAIT_S
            while not family.try_lock(file.fileno()) and time.monotonic() < deadline:
                time.sleep(0.01)
        yield


# -- guesses ---------------------------------------------------------------------------------------


@dataclass(repr=False)
class Guess(Result):
    """One guess: made, then settled by what was measured. Prints as one short table."""

    question: str
    value: Any
    made: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat("T", "seconds"))
    measured: Any = None
    predicted: float | None = None
    late: bool = False  # the run was there before the guess
    refused: str = ""  # why what was given is no guess
    published: bool = False  # others measured it

    def settle(
        self,
        measured: Any,
        *,
        of: str = "utilization",
        predicted: Any = None,
        published: bool = False,
    ) -> Guess:
        """Compare the guess with what was measured, and with what the kit `predicted`.

        Both are a number or a choice, or a Run or Prediction whose attribute `of` is taken. A run
        that was started before the guess was made is shown but not scored. `published` says that
        others measured it, not this machine.
        """
        self.published = published
        if isinstance(measured, Run):
            self.late = bool(measured.utc) and measured.utc < self.made  # both UTC, to the second
            measured = getattr(measured, of)
        if isinstance(measured, float) and math.isnan(measured):
            measured = None  # a row that has no number
        self.measured, self.predicted = measured, getattr(predicted, of, predicted)
        if self.points is not None:
            values = {"measured": measured, "predicted": self.predicted}
            keep("guesses", self.question, guess=self.value, **values)
        return self

    @property
    def points(self) -> int | None:
        """0 to 3, as `points` says; None where there was no guess or it came late."""
        if self.value is None or self.measured is None or self.late:
            return None
        return points(self.value, self.measured)

    def table(self) -> Table:
        """Return the guess beside what was measured, and the ratio of two numbers."""

        def text(value: Any) -> str:
            if isinstance(value, float):
                return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
            return str(value)[:60]

        numbers = all(isinstance(n, (int, float)) for n in (self.value, self.measured))
        late = "none: the run was there before the guess" if self.late else None
        rows = {
            "your guess": "none yet" if self.value is None else self.value,
            "published" if self.published else "measured": self.measured,
            "ratio": self.measured / self.value if numbers and self.value else None,
            "labkit said": self.predicted,
            "points": late if self.points is None else f"{self.points} of 3",
        }
        shown = [(name, text(value)) for name, value in rows.items() if value is not None]
        return Table(shown, title=self.question, foot=(self.refused,), left=(0, 1))


def guess(question: str, value: Any = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    `question` says what is guessed, with its unit. `value` is a finite number or a choice (a text);
    None or `...` skips it. Anything else is no guess, and the table says so.
    """
    if value is None or value is ...:
        return Guess(str(question), None)
    if not _sound(value):
        why = f"{value!r} is no guess: give a number, a text, or None to skip it."
        return Guess(str(question), None, refused=why)
    keep("guesses", str(question), guess=value, measured=None)
    return Guess(str(question), value)


def points(guess: Any, measured: Any) -> int:
    """Return 3 for a guess within 10 % or a right choice, 2 within 25 %, 1 within a factor of 2."""
    if isinstance(guess, str) or isinstance(measured, str) or not (guess > 0 and measured > 0):
        return 3 if guess == measured else 0
    factor = max(guess / measured, measured / guess)
    return 3 if factor <= 1.1 else 2 if factor <= 1.25 else 1 if factor <= 2 else 0


def _sound(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str) or (number and math.isfinite(value))


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
    guesses, challenges = read().values()
    pairs = [(made.get("guess"), made.get("measured")) for made in guesses.values()]
    settled = [pair for pair in pairs if all(map(_sound, pair))]
    solved = sum(each.get("passed") is True for each in challenges.values())
    return Score(
        guess_points=sum(points(*pair) for pair in settled),
        guesses=len(settled),
        solved=solved,
        challenges=len(challenges),
    )
