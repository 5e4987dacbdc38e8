"""The last runs of a panel, as a short list, and what only the page can do for the panel."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

import anywidget
import traitlets

from labkit.results.event_log import EventLogResult

KEPT = 8  # runs in the list; the pinned one stays in it


class History(anywidget.AnyWidget):
    """Lists runs, to be pinned, renamed and saved, and copies texts to the clipboard.

    It also names every control of the panel it stands in for screen readers.
    """

    _esm = Path(__file__).with_name("history.js")
    _css = Path(__file__).with_name("history.css")

    rows = traitlets.List().tag(sync=True)  # dicts: key, name, numbers, verdict, pinned, note
    copies = traitlets.List().tag(sync=True)  # what there is to copy

    def __init__(self, pinned: Callable[[], None], texts: dict[str, Callable[[], str]]):
        """Call `pinned` when another run is; `texts` says what there is to copy, and makes it."""
        super().__init__(copies=list(texts))
        self.runs: dict[int, EventLogResult] = {}  # by the key of its row
        self.texts, self.when_pinned = texts, pinned
        self.on_msg(lambda _self, asked, _buffers: self.handle(**asked))

    @property
    def pinned(self) -> EventLogResult | None:
        """The run that later ones are compared with; None for the one before."""
        return next((self.runs[row["key"]] for row in self.rows if row["pinned"]), None)

    def name(self, run: EventLogResult) -> str:
        """Return what the list calls a run."""
        return next(row["name"] for row in self.rows if self.runs[row["key"]] is run)

    def add(self, run: EventLogResult, name: str, numbers: str, verdict: str) -> None:
        """Put a run on top of the list; the oldest goes."""
        key = 1 + max(self.runs, default=0)
        row = {"key": key, "name": name, "numbers": numbers, "verdict": verdict}
        self.runs[key] = run
        rows = [row | {"pinned": False, "note": ""}, *self.rows]
        for old in [old for old in rows[KEPT:] if not old["pinned"]]:
            rows.remove(old)
            del self.runs[old["key"]]
        self.rows = rows

    def handle(self, do: str, key: int = 0, value: str = "") -> None:
        """Do what the page asks: "pin", "rename", "save" the run of a row, or "copy" a text."""
        if do == "copy":
            threading.Thread(target=self._copy, args=[self.texts[value]], daemon=True).start()
            return
        row = next((row for row in self.rows if row["key"] == key), None)
        if row is None:  # it left the list meanwhile
            return
        if do == "pin":
            self.rows = [old | {"pinned": old is row and not row["pinned"]} for old in self.rows]
            self.when_pinned()
        else:
            changed = {"name": value.strip() or row["name"]}
            if do == "save":
                changed = {"note": self._saved(self.runs[key], row["name"])}
            self.rows = [old | changed if old is row else old for old in self.rows]

    def _copy(self, text: Callable[[], str]) -> None:
        with contextlib.suppress(ValueError):  # the panel says which controls do not go together
            self.send({"copy": str(text())})

    def _saved(self, run: EventLogResult, name: str) -> str:
        """Save a run beside the notebook under a name that is free; say where, or why not."""
        path = Path(f"{re.sub(r'[^0-9A-Za-z_.-]+', '-', name).strip('-.') or 'run'}.jsonl")
        path = path.with_stem(f"{path.stem}-{run.id}") if path.exists() else path
        try:
            return f"saved: {run.save(path)}"
        except (OSError, ValueError) as error:
            return f"not saved: {error}"
