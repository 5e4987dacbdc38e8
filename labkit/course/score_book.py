"""What was guessed and solved, kept in `labkit-score.jsonl`, in the folder the notebook runs in.

Delete the file to begin again; it is never sent anywhere. Where it cannot be written, or a test
runs the notebook, what was kept lives for the session.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from labkit.stamps.plain_file import text_of

FILE_NAME = "labkit-score.jsonl"
MAX_BYTES = 2**22  # of the file
KINDS = ("guesses", "challenges")
QUIET = ("PYTEST_CURRENT_TEST", "LABKIT_NO_SCORE")  # set where nobody is playing

Guessed = float | str  # a number or a choice
Values = dict[str, Any]  # what is kept of one guess or challenge, as JSON types

_unwritten: list[Values] = []  # what this session could not write


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
