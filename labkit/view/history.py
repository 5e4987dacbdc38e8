"""The list of a panel's last runs, kept for the next kernel: one can be pinned, to compare with."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypedDict, TypeVar, cast

import anywidget
import traitlets

from labkit.process import folders
from labkit.process.events import private
from labkit.process.folder_rights import shared_like_its_parent
from labkit.process.notebook import in_notebook
from labkit.results.library import load
from labkit.results.plain_file import text_of
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.view.home_thread import HomeThread
from labkit.view.page_files import STYLE_SHEET, script_of

Ran = TypeVar("Ran", Run, Ranks)

MAX_BYTES = 2**20  # of a list
MOST_ROWS = 8  # the pinned one stays beside them


class ListedRun(TypedDict):
    """A run in the list, as the page shows it."""

    key: int
    name: str
    numbers: str
    verdict: str
    folder: str  # of the run
    pinned: bool


class History(anywidget.AnyWidget, Generic[Ran]):
    """Lists runs, of which one can be pinned."""

    _esm = script_of("dom.js", "history.js")
    _css = STYLE_SHEET

    rows = traitlets.List().tag(sync=True)  # of ListedRun

    def __init__(self, when_pinned: Callable[[], None], home: HomeThread, file: Path | None):
        """Begin with the runs in `file`, where there is one, and keep it up to date.

        `when_pinned` is called when another run is, or none.
        """
        super().__init__()
        self.runs: dict[int, Ran] = {}  # by the key of its row, once it is needed
        self.file = file
        self.rows = [] if file is None else stored_rows(file)
        self.when_pinned = when_pinned
        self.on_msg(lambda _self, asked, _buffers: home.call(self.pin, asked["pin"]))

    @property
    def pinned(self) -> tuple[str, Ran] | None:
        """The name and the run that later ones are compared with; None for the one before."""
        for row in self.rows:
            if row["pinned"]:
                return row["name"], self.run_of(row)
        return None

    def against(self, before: Ran | None) -> tuple[str, Ran | None]:
        """Return what a run is compared with, its name first: the pinned run, else `before`."""
        if self.pinned is None:
            return "the run before", before
        name, run = self.pinned
        return f"the pinned run ({name})", run

    def run_of(self, row: ListedRun) -> Ran:
        """Return the run of a row; an earlier kernel's is read from its folder."""
        if row["key"] not in self.runs:
            run = cast("Ran", load(row["folder"]))
            run.recorded = False  # it was measured here
            self.runs[row["key"]] = run
        return self.runs[row["key"]]

    def add(self, run: Ran, name: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        key = 1 + max((row["key"] for row in self.rows), default=0)
        numbers = run.in_short if run.throughput else ""
        row = ListedRun(
            key=key,
            name=name,
            numbers=numbers,
            verdict=verdict,
            folder=str(run.path),
            pinned=False,
        )
        rows = [row, *self.rows]
        self.rows = [row for place, row in enumerate(rows) if place < MOST_ROWS or row["pinned"]]
        self.runs[key] = run
        if self.file is not None:
            with contextlib.suppress(OSError):  # a full disk loses the list, not the run
                store_rows(self.rows, self.file)

    def pin(self, key: int) -> None:
        """Pin the run of a row, or let go of it where it is pinned."""
        rows: list[ListedRun] = [row.copy() for row in self.rows]
        for row in rows:
            row["pinned"] = row["key"] == key and not row["pinned"] and self._is_there(row)
        self.rows = rows
        self.when_pinned()

    def _is_there(self, row: ListedRun) -> bool:
        """Return whether the run of a row can be read; say in the row why not."""
        try:
            self.run_of(row)
        except (OSError, ValueError) as error:  # its folder made room for later runs
            row["verdict"] = f"cannot be shown: {error}"
            return False
        return True


def file_of(panel: str) -> Path | None:
    """Return where this notebook's list of runs of a panel is stored; None outside a notebook."""
    if not in_notebook():
        return None
    notebook = os.environ.get("JPY_SESSION_NAME") or os.getcwd()
    name = hashlib.sha256(f"{notebook}\n{panel}".encode()).hexdigest()[:16]
    return folders.home() / "panels" / f"{name}.json"


def stored_rows(file: Path) -> list[ListedRun]:
    """Return the rows of an earlier kernel whose runs are still there."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        stored: list[ListedRun] = json.loads(text_of(file, MAX_BYTES))
        rows = [row for row in stored if Path(row["folder"]).exists()]
        for key, row in enumerate(rows):
            row["key"] = key
            row["pinned"] = False
        return rows[:MOST_ROWS]
    return []


def store_rows(rows: list[ListedRun], file: Path) -> None:
    """Keep the rows for the next kernel."""
    shared_like_its_parent(file.parent)
    with open(file, "w", encoding="utf-8", opener=private) as stored:
        json.dump(rows, stored)
