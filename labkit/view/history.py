"""The list of a panel's last runs: one of them can be pinned, to compare later ones with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

import anywidget
import traitlets

from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.view.home_thread import HomeThread

Ran = TypeVar("Ran", Run, Ranks)

MOST_ROWS = 8  # the pinned one stays beside them


class Row(TypedDict):
    """A run in the list, as the page shows it."""

    key: int
    name: str
    numbers: str
    verdict: str
    pinned: bool


class History(anywidget.AnyWidget, Generic[Ran]):
    """Lists runs, of which one can be pinned, and copies texts to the clipboard.

    It also names every control of the panel it stands in for screen readers.
    """

    _esm = Path(__file__).with_name("history.js")
    _css = Path(__file__).with_name("live.css")

    rows = traitlets.List().tag(sync=True)  # of Row
    copies = traitlets.List().tag(sync=True)  # what there is to copy

    def __init__(
        self,
        when_pinned: Callable[[], None],
        texts: Mapping[str, Callable[[], str]],
        home: HomeThread,
    ):
        """Call `when_pinned` when another run is; `texts` makes what there is to copy, by name."""
        super().__init__(copies=list(texts))
        self.runs: dict[int, Ran] = {}  # by the key of its row
        self.texts = texts
        self.when_pinned = when_pinned
        self.on_msg(lambda _self, asked, _buffers: home.call(self.handle, **asked))

    @property
    def pinned(self) -> tuple[str, Ran] | None:
        """The name and the run that later ones are compared with; None for the one before."""
        for row in self.rows:
            if row["pinned"]:
                return row["name"], self.runs[row["key"]]
        return None

    def add(self, run: Ran, name: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        key = 1 + max(self.runs, default=0)
        numbers = ", ".join(run.numbers.split(", ")[:2]) if run.throughput else ""
        row = Row(key=key, name=name, numbers=numbers, verdict=verdict, pinned=False)
        rows = [row, *self.rows]
        self.runs[key] = run
        self.rows = [row for place, row in enumerate(rows) if place < MOST_ROWS or row["pinned"]]
        self.runs = {row["key"]: self.runs[row["key"]] for row in self.rows}

    def handle(self, do: str, key: int = 0, value: str = "") -> None:
        """Do what the page asks: "pin" the run of a row, or "copy" a text."""
        if do == "copy":
            threading.Thread(target=self._copy, args=[self.texts[value]], daemon=True).start()
            return
        self.rows = [row | {"pinned": row["key"] == key and not row["pinned"]} for row in self.rows]
        self.when_pinned()

    def _copy(self, make: Callable[[], str]) -> None:
        with contextlib.suppress(ValueError):  # the panel says which controls do not go together
            self.send({"copy": make()})
