"""A submitted notebook: read as the untrusted JSON it is, and cut into its challenges."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 32 * 2**20  # of a notebook, figures included
MAX_CELLS, MAX_CELL_BYTES, MAX_CHALLENGES = 2000, 64 * 1024, 100
CHECK = re.compile(r"""challenge\(\s*["']([\w.-]{1,40})["']\s*\)\s*\.\s*check\s*\(""")
TAG = "challenge"


class BadNotebook(ValueError):
    """A file that is no notebook; the message says why."""


@dataclass(frozen=True)
class Cells:
    """What one challenge needs: its cells, and the code cells before them for their imports."""

    key: str
    cells: tuple[str, ...]
    before: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """A notebook's challenges, one each: the last of its cells that checks a key counts."""

    path: Path
    challenges: tuple[Cells, ...]


def read(path: Path) -> Submission:
    """Read a notebook; nothing in it is run.

    A challenge is the code cell that calls `lk.challenge("KEY").check(answer)`, with the code
    cells before it that are tagged "challenge" (or are nbgrader's cells for an answer) and check
    nothing themselves. Raises BadNotebook.
    """
    pending: list[str] = []
    before: list[str] = []
    found: dict[str, Cells] = {}
    for number, cell in enumerate(_cells(_json(path))):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        text = _source(cell, number)
        keys = CHECK.findall(text)
        nbgrader = _metadata(cell, "nbgrader", dict)
        if keys or TAG in _metadata(cell, "tags", list) or _is_answer(nbgrader):
            pending.append(text)
        for key in keys:
            found.pop(key, None)
            found[key] = Cells(key, tuple(pending), tuple(before))
        if len(found) > MAX_CHALLENGES:
            raise BadNotebook(f"checks more than {MAX_CHALLENGES} challenges")
        if keys or nbgrader.get("grade") is True:  # what came before was for this check
            pending = []
        before.append(text)
    return Submission(path, tuple(found.values()))


def notebooks(given: list[str]) -> list[Path]:
    """Return the notebooks in `given`, files or folders (all below, as nbgrader's submitted/)."""
    found: list[Path] = []
    for place in map(Path, given):
        if place.is_dir():
            below = sorted(place.rglob("*.ipynb"))
            found += [path for path in below if ".ipynb_checkpoints" not in path.parts]
            if not below:
                raise ValueError(f"{place}: there is no notebook below this folder.")
        else:
            found.append(place)
    return list(dict.fromkeys(found))


def _json(path: Path) -> Any:
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadNotebook("is no file")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = "is a link" if path.is_symlink() else (error.strerror or str(error))
        raise BadNotebook(f"cannot be read: {why}") from None
    if len(data) > MAX_BYTES:
        raise BadNotebook(f"is larger than {MAX_BYTES // 2**20} MiB")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadNotebook("is no notebook: it is not JSON") from None


def _cells(content: Any) -> list[Any]:
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise BadNotebook("is no notebook of format 4: it has no list of cells")
    if len(cells) > MAX_CELLS:
        raise BadNotebook(f"has more than {MAX_CELLS} cells")
    return cells


def _source(cell: dict[str, Any], number: int) -> str:
    source = cell.get("source")
    lines = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) for line in lines):
        raise BadNotebook(f"is no notebook: cell {number} has no text")
    text = "".join(lines)
    if len(text) > MAX_CELL_BYTES:
        raise BadNotebook(f"has a cell of more than {MAX_CELL_BYTES // 1024} kB (number {number})")
    return text


def _is_answer(nbgrader: dict[str, Any]) -> bool:
    """Whether this is nbgrader's "Autograded answer"; one graded by hand stands for itself."""
    return nbgrader.get("solution") is True and nbgrader.get("grade") is not True


def _metadata(cell: dict[str, Any], name: str, kind: type) -> Any:
    metadata = cell.get("metadata")
    found = metadata.get(name) if isinstance(metadata, dict) else None
    return found if isinstance(found, kind) else kind()
