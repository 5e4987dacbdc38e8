"""What the reader has guessed, solved and named so far: one small file next to the notebooks.

`labkit-score.json` in the folder the notebook runs in. Delete it to begin again; it is never sent
anywhere. Where it cannot be written, or a test runs the notebook, the score lives for the session.
"""

from __future__ import annotations

import html
import json
import math
import os
from pathlib import Path
from typing import Any

FILE_NAME = "labkit-score.json"
MAX_BYTES = 2**20
KINDS = ("guesses", "challenges", "mysteries")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing

_session: dict[str, dict[str, Any]] = {}


def points(guess: Any, measured: Any) -> int:
    """Return 3 for a guess within 10 %, 2 within 25 %, 1 within a factor of two, otherwise 0.

    A choice is right (3) or wrong (0).
    """
    if isinstance(guess, str) or isinstance(measured, str):
        return 3 if guess == measured else 0
    if not (guess > 0 and measured > 0):
        return 3 if guess == measured else 0
    factor = max(guess / measured, measured / guess)
    return 3 if factor <= 1.1 else 2 if factor <= 1.25 else 1 if factor <= 2 else 0


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
    """Return {kind: {name: values}}; what is not a score file counts as none."""
    found: Any = _session
    if not _session and not _quiet():
        try:
            if os.path.getsize(FILE_NAME) <= MAX_BYTES:
                found = json.loads(Path(FILE_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = {}
    found = found if isinstance(found, dict) else {}
    return {kind: _entries(found.get(kind)) for kind in KINDS}


def _entries(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, dict)}


def _quiet() -> bool:
    return any(name in os.environ for name in QUIET)


class Score:
    """The running score over the course; prints as a short table."""

    def __init__(self, book: dict[str, dict[str, Any]]):
        self.book = book

    @property
    def guess_points(self) -> int:
        """Points for the guesses that were settled, three each at the most."""
        return sum(points(*pair) for pair in self._settled())

    @property
    def solved(self) -> int:
        """Challenges passed."""
        return sum(each.get("passed") is True for each in self.book["challenges"].values())

    @property
    def named(self) -> int:
        """Mysteries whose cause was named at the first try."""
        return sum(each.get("tries") == 1 and each.get("right") is True
                   for each in self.book["mysteries"].values())  # fmt: skip

    def _settled(self) -> list[tuple[Any, Any]]:
        pairs = [(g.get("guess"), g.get("measured")) for g in self.book["guesses"].values()]
        return [pair for pair in pairs if all(map(_sound, pair))]

    def rows(self) -> list[tuple[str, str]]:
        """The table: (what, how much), as text."""
        settled = len(self._settled())
        return [
            ("guesses", f"{self.guess_points} of {3 * settled} points for {settled} guesses"),
            ("challenges", f"{self.solved} passed, {len(self.book['challenges'])} tried"),
            ("mysteries", f"{self.named} named at once, {len(self.book['mysteries'])} tried"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"guess_points": self.guess_points, "solved": self.solved, "named": self.named}

    def __repr__(self) -> str:
        return "\n".join(f"{what:11} {text}" for what, text in self.rows())

    def _repr_html_(self) -> str:
        row = "<tr><th>{}</th><td style='text-align:left'>{}</td></tr>"
        return f"<table>{''.join(row.format(*map(html.escape, r)) for r in self.rows())}</table>"


def _sound(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    return isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))


def score() -> Score:
    """Return the score so far."""
    return Score(read())
