"""Predict first: guesses, written down before a run can start, and the score over the course.

What was guessed, solved and named is kept in `labkit-score.json`, in the folder the notebook runs
in. Delete it to begin again; it is never sent anywhere. Where it cannot be written, or a test runs
the notebook, the score lives for the session.
"""

from __future__ import annotations

import json
import math
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.results.result import Result
from labkit.results.run import Run
from labkit.results.table import Table

FILE_NAME = "labkit-score.json"
MAX_BYTES = 2**20
KINDS = ("guesses", "challenges", "mysteries")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing

_session: dict[str, dict[str, Any]] = {}


def keep(kind: str, name: str, **values: Any) -> None:
    """Remember `values` of one guess, challenge or mystery; never raises."""
    book = read()
    book[kind][name] = {**book[kind].get(name, {}), **values}
    if _quiet():
        _session.update(book)
        return
    try:
        unfinished = Path(f"{FILE_NAME}.part")
        unfinished.write_text(json.dumps(book, indent=1, allow_nan=False), encoding="utf-8")
        unfinished.replace(FILE_NAME)
    except (OSError, ValueError):  # a folder that is read-only: this session only
        _session.update(book)


def read() -> dict[str, dict[str, Any]]:
    """Return {kind: {name: values}}; anything that is not a score file counts as none."""
    found: Any = _session
    if not _session and not _quiet():
        try:
            if os.path.getsize(FILE_NAME) <= MAX_BYTES:
                found = json.loads(Path(FILE_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = {}
    return {kind: _entries(_entries(found).get(kind)) for kind in KINDS}


def _entries(found: Any) -> dict[str, Any]:
    entries = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, value in entries if isinstance(value, dict)}


def _quiet() -> bool:
    return any(name in os.environ for name in QUIET)


# -- guesses ---------------------------------------------------------------------------------------


class Guess(Result):
    """One guess: made, then settled by what was measured. Prints as one short table."""

    def __init__(self, question: str, value: Any):
        self.question, self.value = question, value
        self.made = datetime.now(timezone.utc).replace(microsecond=0)
        self.measured: Any = None
        self.predicted: float | None = None
        self.late = False  # the run was there before the guess

    def settle(self, measured: Any, *, of: str = "utilization", predicted: Any = None) -> Guess:
        """Compare the guess with what was measured, and with the kit's own prediction.

        Args:
            measured: A number, a choice, or a Run, whose attribute `of` is taken. A run that was
                started before the guess was made is shown but not scored.
            of: Which attribute of the run.
            predicted: The kit's own prediction, a number or a `Prediction` with that attribute.
        """
        if isinstance(measured, Run):
            self.late = bool(measured.utc) and datetime.fromisoformat(measured.utc) < self.made
            measured = getattr(measured, of)
        self.measured, self.predicted = measured, getattr(predicted, of, predicted)
        if self.points is not None:
            values = {"guess": self.value, "measured": measured, "predicted": self.predicted}
            keep("guesses", self.question, **values)
        return self

    @property
    def ratio(self) -> float | None:
        """Measured over guess; None for a choice, or before it is settled."""
        numbers = (self.value, self.measured)
        if all(isinstance(n, (int, float)) for n in numbers) and self.value:
            return self.measured / self.value
        return None

    @property
    def points(self) -> int | None:
        """0 to 3, as `points` says; None where there was no guess or it came late."""
        if self.value is None or self.measured is None or self.late:
            return None
        return points(self.value, self.measured)

    def table(self) -> Table:
        """The guess beside what was measured."""
        late, points = "none: the run was there before the guess", self.points
        rows = [
            ("your guess", "none: skipped" if self.value is None else _text(self.value)),
            ("measured", _text(self.measured)),
            ("ratio", _text(self.ratio)),
            ("labkit said", _text(self.predicted)),
            ("points", late if self.late else None if points is None else f"{points} of 3"),
        ]
        return Table([row for row in rows if row[1] is not None], title=self.question, left=(0, 1))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        names = ("question", "value", "measured", "predicted", "points")
        return {name: getattr(self, name) for name in names}


def guess(question: str, value: Any = None) -> Guess:
    """Write a guess down, before the run that settles it: `bet.settle(run)` afterwards.

    Args:
        question: What is guessed, with its unit; the name it has in the score.
        value: A finite number or a choice (a text); None skips it.

    Raises:
        ValueError: A value that is neither.
    """
    if value is not None and not _sound(value):
        raise ValueError(f"guess {value!r}: give a number, a text, or None to skip it.")
    made = Guess(str(question), value)
    if value is not None:
        keep("guesses", made.question, guess=value, measured=None)
    return made


def points(guess: Any, measured: Any) -> int:
    """Return 3 for a guess within 10 %, 2 within 25 %, 1 within a factor of two, otherwise 0.

    A choice is right (3) or wrong (0).
    """
    if isinstance(guess, str) or isinstance(measured, str) or not (guess > 0 and measured > 0):
        return 3 if guess == measured else 0
    factor = max(guess / measured, measured / guess)
    return 3 if factor <= 1.1 else 2 if factor <= 1.25 else 1 if factor <= 2 else 0


def _sound(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    return isinstance(value, str) or math.isfinite(value)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)[:60]


# -- the score -------------------------------------------------------------------------------------


class Score(Result):
    """The running score over the course; prints as a short table."""

    def __init__(self, book: dict[str, dict[str, Any]]):
        self.book = book
        pairs = [(g.get("guess"), g.get("measured")) for g in book["guesses"].values()]
        self._settled = [pair for pair in pairs if all(map(_sound, pair))]

    @property
    def guess_points(self) -> int:
        """Points for the guesses that were settled, three each at the most."""
        return sum(points(*pair) for pair in self._settled)

    @property
    def solved(self) -> int:
        """Challenges passed."""
        return sum(each.get("passed") is True for each in self.book["challenges"].values())

    @property
    def named(self) -> int:
        """Mysteries whose cause was named at the first try."""
        named = [(m.get("tries"), m.get("right")) for m in self.book["mysteries"].values()]
        return named.count((1, True))

    def table(self) -> Table:
        """The points, challenges and mysteries so far."""
        made, most = len(self._settled), 3 * len(self._settled)
        rows = [
            ("guesses", f"{self.guess_points} of {most} points for {made} guesses"),
            ("challenges", f"{self.solved} passed, {len(self.book['challenges'])} tried"),
            ("mysteries", f"{self.named} named at once, {len(self.book['mysteries'])} tried"),
        ]
        return Table(rows, left=(0, 1))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"guess_points": self.guess_points, "solved": self.solved, "named": self.named}


def score() -> Score:
    """Return the score so far."""
    return Score(read())
