"""A submitted notebook, cut into its challenges; nothing in it is run here."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 32 * 2**20  # of a notebook, figures included
CHECK = re.compile(r"""challenge\(\s*["']([\w.-]{1,40})["']\s*\)\s*\.\s*check\s*\(""")
TAG = "challenge"


class BadNotebook(ValueError):
    """A file that is not a notebook; the message says why."""


@dataclass(frozen=True)
class Cells:
    """The cells of one challenge, and the code cells before them for their imports."""

    key: str
    cells: tuple[str, ...]
    before: tuple[str, ...]

    def imports(self) -> list[str]:
        """Return the import statements of the cells before: one that fails costs no other."""
        from IPython.core.inputtransformer2 import TransformerManager

        found = []
        for text in self.before:
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                body = ast.parse(TransformerManager().transform_cell(text)).body  # without magics
                found += [
                    ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom)
                ]
        return found


def notebooks(given: Iterable[Path]) -> list[Path]:
    """Return the notebooks in `given`, files or folders (all below, as nbgrader's submitted/)."""
    found: list[Path] = []
    for place in given:
        below = sorted(place.rglob("*.ipynb")) if place.is_dir() else [place]
        if not below:
            raise ValueError(f"{place}: no notebook below this folder.")
        found += [path for path in below if ".ipynb_checkpoints" not in path.parts]
    return list(dict.fromkeys(found))


def read(path: Path) -> list[Cells]:
    """Return a notebook's challenges, without running anything; raises BadNotebook."""
    try:
        if path.exists() and not path.is_file():
            raise BadNotebook("not a file")
        if path.stat().st_size > MAX_BYTES:
            raise BadNotebook(f"larger than {MAX_BYTES // 2**20} MiB")
        cells = json.loads(path.read_bytes())["cells"]
        code = [(cell, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
        return _challenges(code)
    except BadNotebook:
        raise
    except OSError as error:
        raise BadNotebook(f"cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise BadNotebook("not a notebook of format 4: it has no list of cells") from None
    except ValueError:
        raise BadNotebook("not a notebook: it is not JSON") from None


def _challenges(code: list[tuple[dict[str, Any], str]]) -> list[Cells]:
    pending: list[str] = []
    before: list[str] = []
    found: dict[str, Cells] = {}
    for cell, text in code:
        keys = CHECK.findall(text)
        metadata = cell.get("metadata") or {}
        nbgrader = metadata.get("nbgrader") or {}
        # An "Autograded answer" of nbgrader's; one that is graded by hand stands for itself
        answer = nbgrader.get("solution") is True and nbgrader.get("grade") is not True
        if keys or answer or TAG in metadata.get("tags", ()):
            pending.append(text)
        for key in keys:
            found.pop(key, None)
            found[key] = Cells(key, tuple(pending), tuple(before))
        if keys or nbgrader.get("grade") is True:  # what came before was for this check
            pending = []
        before.append(text)
    return list(found.values())
