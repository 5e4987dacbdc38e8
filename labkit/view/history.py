"""The list of a panel's last runs: one can be pinned, to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import anywidget
import traitlets

from labkit.results.run import Run
from labkit.view.home_thread import HomeThread
from labkit.view.page_files import STYLE_SHEET, script_of

MAX_BYTES = 2**20  # of a list
MOST_ROWS = 8  # the pinned one stays beside them


class ListedRun(TypedDict):
    """A run in the list, as the page shows it."""

    key: int
    name: str
    numbers: str
    verdict: str
    pinned: bool


class History(anywidget.AnyWidget):
    """Lists runs, of which one can be pinned."""

    _esm = script_of("dom.js", "history.js")
    _css = STYLE_SHEET

    rows = traitlets.List().tag(sync=True)  # of ListedRun

    def __init__(self, when_pinned: Callable[[], None], home: HomeThread):
        """Begin with none; `when_pinned` is called when another run is, or none."""
        super().__init__()
        self.runs: dict[int, Run] = {}  # by the key of its row
        self.when_pinned = when_pinned
        self.on_msg(lambda _self, asked, _buffers: home.call(self.pin, asked["pin"]))

    @property
    def pinned(self) -> tuple[str, Run] | None:
        """The name and the run that later ones are compared with; None for the one before."""
        for row in self.rows:
            if row["pinned"]:
                return row["name"], self.runs[row["key"]]
        return None

    def against(self, before: Run | None) -> tuple[str, Run | None]:
        """Return what a run is compared with, its name first: the pinned run, else `before`."""
        if self.pinned is None:
            return "the run before", before
        name, run = self.pinned
        return f"the pinned run ({name})", run

    def add(self, run: Run, name: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        key = 1 + max((row["key"] for row in self.rows), default=0)
        numbers = run.in_short if run.throughput else ""
        row = ListedRun(
            key=key,
            name=name,
            numbers=numbers,
            verdict=verdict,
            pinned=False,
        )
        rows = [row, *self.rows]
        self.rows = [row for place, row in enumerate(rows) if place < MOST_ROWS or row["pinned"]]
        self.runs[key] = run

    def pin(self, key: int) -> None:
        """Pin the run of a row, or let go of it where it is pinned."""
        rows: list[ListedRun] = [row.copy() for row in self.rows]
        for row in rows:
            row["pinned"] = row["key"] == key and not row["pinned"]
        self.rows = rows
        self.when_pinned()
