"""The list of a panel's last runs: to compare with, rename and save; kept for the next kernel."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

import anywidget
import traitlets

from labkit.process import folders
from labkit.process.events import private
from labkit.process.family import shared_like_its_parent
from labkit.process.interrupts import in_notebook
from labkit.results.library import load
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.view.home_thread import HomeThread

MOST_ROWS = 8  # the pinned one stays beside them
TEXTS = ("name", "numbers", "verdict", "folder")  # of a row, as they are stored


class Row(TypedDict):
    """A run in the list, as the page shows it."""

    key: int
    name: str
    numbers: str
    verdict: str
    folder: str  # of the run
    note: str  # in place of the verdict: where it was saved
    pinned: bool
    earlier: bool  # made by an earlier kernel of this notebook


class History(anywidget.AnyWidget):
    """Lists runs, to be pinned, renamed and saved, and copies texts to the clipboard.

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
        file: Path | None = None,
    ):
        """Begin with the runs in `file`, where there is one, and keep it up to date.

        `when_pinned` is called when another run is; `texts` makes what there is to copy, by name.
        """
        super().__init__(copies=list(texts))
        self.runs: dict[int, Run | Ranks] = {}  # by the key of its row, once it is needed
        self.texts = texts
        self.when_pinned = when_pinned
        self.file = file
        self.rows = [] if file is None else stored_rows(file)
        self.on_msg(lambda _self, asked, _buffers: home.call(self.handle, **asked))

    @property
    def pinned(self) -> Run | Ranks | None:
        """The run that later ones are compared with; None for the one before."""
        for row in self.rows:
            if row["pinned"]:
                return self.run_of(row)
        return None

    @property
    def pinned_name(self) -> str:
        """What the list calls the pinned run."""
        return next((row["name"] for row in self.rows if row["pinned"]), "")

    def run_of(self, row: Row) -> Run | Ranks:
        """Return the run of a row; an earlier kernel's is read from its folder."""
        if row["key"] not in self.runs:
            run = load(row["folder"])
            assert isinstance(run, (Run, Ranks))  # what a panel lists
            run.recorded = False  # it was measured here
            self.runs[row["key"]] = run
        return self.runs[row["key"]]

    def add(self, run: Run | Ranks, name: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        row = Row(
            key=1 + max((row["key"] for row in self.rows), default=0),
            name=name,
            numbers=", ".join(run.numbers.split(", ")[:2]) if run.throughput else "",
            verdict=verdict,
            folder=str(run.path),
            note="",
            pinned=False,
            earlier=False,
        )
        self.runs[row["key"]] = run
        rows = [row, *self.rows]
        kept = [row for place, row in enumerate(rows) if place < MOST_ROWS or row["pinned"]]
        keys = {row["key"] for row in kept}
        self.runs = {key: run for key, run in self.runs.items() if key in keys}
        self._show(kept)

    def _show(self, rows: list[Row]) -> None:
        self.rows = rows
        if self.file is not None:
            texts = [{name: row[name] for name in TEXTS} for row in rows]
            with contextlib.suppress(OSError):  # a full disk loses the list, not the run
                shared_like_its_parent(self.file.parent)
                with open(self.file, "w", encoding="utf-8", opener=private) as file:
                    json.dump(texts, file)

    def handle(self, do: str, key: int = 0, value: str = "") -> None:
        """Do what the page asks: "pin", "rename", "save" the run of a row, or "copy" a text."""
        if do == "copy":
            threading.Thread(target=self._copy, args=[self.texts[value]], daemon=True).start()
            return
        rows: list[Row] = [row.copy() for row in self.rows]
        for row in rows:
            if row["key"] != key:
                row["pinned"] = row["pinned"] and do != "pin"
            elif do == "pin":
                row["pinned"] = not row["pinned"] and self._is_there(row)
            elif do == "save":
                row["note"] = self._saved(row)
            else:
                row["name"] = value.strip() or row["name"]
        self._show(rows)
        if do == "pin":
            self.when_pinned()

    def _is_there(self, row: Row) -> bool:
        """Return whether the run of a row can be read; note in the row why not."""
        try:
            self.run_of(row)
        except (OSError, ValueError) as error:  # its folder made room for later runs
            row["note"] = f"cannot be shown: {error}"
            return False
        return True

    def _copy(self, make: Callable[[], str]) -> None:
        with contextlib.suppress(ValueError):  # the panel says which controls do not go together
            self.send({"copy": make()})

    def _saved(self, row: Row) -> str:
        """Save a run beside the notebook under a name that is free; say where, or why not."""
        name = re.sub(r"[^0-9A-Za-z_.-]+", "-", row["name"]).strip("-.") or "run"
        path = Path(f"{name}.jsonl")
        try:
            run = self.run_of(row)
            if path.exists():
                path = path.with_stem(f"{path.stem}-{run.id}")
            return f"saved: {run.save(path)}"
        except (OSError, ValueError) as error:
            return f"not saved: {error}"


def file_of(panel: str) -> Path | None:
    """Return where this notebook's list of runs of a panel is stored; None outside a notebook."""
    if not in_notebook():
        return None
    notebook = os.environ.get("JPY_SESSION_NAME") or os.getcwd()
    name = hashlib.sha256(f"{notebook}\n{panel}".encode()).hexdigest()[:16]
    return folders.home() / "panels" / f"{name}.json"


def stored_rows(file: Path) -> list[Row]:
    """Return the rows of an earlier kernel whose runs are still there."""
    rows: list[Row] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for key, texts in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            if Path(texts["folder"]).exists():
                row = Row(
                    key=key,
                    name=str(texts["name"]),
                    numbers=str(texts["numbers"]),
                    verdict=str(texts["verdict"]),
                    folder=str(texts["folder"]),
                    note="",
                    pinned=False,
                    earlier=True,
                )
                rows.append(row)
    return rows[:MOST_ROWS]
