"""Recorded runs: list what is there, load one.

A recorded run is `<machine>/<name>.jsonl.gz` in the package or in a folder of records; what
it is stands in its first events.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import labkit
from labkit.api import Loaded, load
from labkit.results.records import head_of
from labkit.text import counted

if TYPE_CHECKING:
    import pandas

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SUFFIX = ".jsonl.gz"


@dataclass(frozen=True)
class Entry:
    """One recorded run in a listing, before it is loaded."""

    name: str
    title: str  # what it shows
    hardware: str
    kind: str  # "gpu" or "cpu"
    date: str
    torch: str
    path: Path

    def load(self) -> Loaded:
        """Load it; it is marked RECORDED wherever it shows."""
        return load(self.path)


class Library(list[Entry]):
    """Recorded runs; prints their names, `.rows` says what they show."""

    @property
    def rows(self) -> pandas.DataFrame:
        """A row a run."""
        import pandas

        return pandas.DataFrame(self, columns=["name", "title", "hardware", "date", "torch"])

    def __repr__(self) -> str:
        machines = " and ".join(sorted({entry.hardware for entry in self}))
        listed = ", ".join(entry.name for entry in self)
        runs = counted(len(self), "run")
        return f"{runs} RECORDED on {machines}: {listed}.\nlk.recorded(name) loads one; see .rows."


def recorded(
    name: str | None = None, folder: str | os.PathLike[str] | None = None
) -> Library | Loaded:
    """List the recorded runs, or load the one called `name`; ValueError where it is not there.

    Of several machines a GPU's comes first; `"<machine>/<name>"` asks for one. `folder` is what
    `maintain/recordings.py --out FOLDER` wrote; None: what comes with the package.
    """
    found = _library(Path(labkit.__file__).parent / "records" if folder is None else Path(folder))
    if name is None:
        return found
    machine, _, plain = str(name).rpartition("/")
    of_machine = [entry for entry in found if machine in ("", entry.path.parent.name)]
    for entry in of_machine:
        if entry.name == plain:
            return entry.load()
    names = [entry.name for entry in of_machine] or [f"{each.path.parent.name}/" for each in found]
    known = ", ".join(dict.fromkeys(names)) or "none"
    raise ValueError(f"Unknown record {name!r}; available: {known}.")


def _library(folder: Path) -> Library:
    """Return the recorded runs in a folder and in the folders directly below it."""
    files = [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*/*{SUFFIX}")]
    entries = filter(None, map(_entry, files))
    return Library(sorted(entries, key=lambda each: (each.kind != "gpu", each.hardware, each.name)))


def _entry(file: Path) -> Entry | None:
    """Return a record's entry in a listing, from its first events; None where it has none."""
    name = file.name.removesuffix(SUFFIX)
    head = head_of(file)
    spec = head.get("spec")
    machine = head.get("machine")
    if not NAME.fullmatch(name) or spec is None or machine is None:
        return None
    return Entry(
        name=name,
        title=str(spec.get("title", ""))[:100],
        hardware=machine["name"][:60],
        kind=machine["kind"],
        date=str(spec.get("utc", "unknown"))[:10],
        torch=str(machine["versions"].get("torch", "unknown"))[:20],
        path=file,
    )
