"""The recorded runs that come with the package, or with a folder that `record` wrote.

A record is `<machine>/<name>.jsonl.gz`; what it is stands in its first events, so that there is no
list of them to keep in step.
"""

from __future__ import annotations

import gzip
import html
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit.results.load import load
from labkit.results.measurements import Measurements
from labkit.results.run import Run

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
HEAD_BYTES = 32 * 1024  # of a record, unpacked: its spec and its machine stand in it


@dataclass(frozen=True)
class Recording:
    """One recorded run, before it is loaded."""

    name: str
    title: str  # what it shows
    hardware: str
    kind: str  # "gpu" or "cpu"
    date: str
    torch: str
    path: Path
    experiment: bool = False  # measurements rather than steps

    def load(self) -> Run | Measurements:
        """Load it; it is marked RECORDED wherever it shows."""
        return load(self.path)


class Recordings(tuple):
    """A listing of recorded runs; prints as a table."""

    HEAD = ("name", "what it shows", "RECORDED on", "date", "torch")

    def rows(self) -> list[tuple[str, ...]]:
        """The table, every cell as text."""
        return [(r.name, r.title, r.hardware, r.date, r.torch) for r in self]

    def __repr__(self) -> str:
        if not self:
            return "no recorded runs here"
        table = [self.HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows())
        return f"<table>{row(self.HEAD, 'th')}{body}</table>"


def recorded(
    name: str | None = None, folder: str | os.PathLike | None = None
) -> Recordings | Run | Measurements:
    """List the recorded runs, or load the one called `name`.

    Args:
        name: As the listing shows it; None returns the listing. Where several machines recorded
            it, a GPU's comes first; `"<machine>/<name>"` asks for one of them.
        folder: What `labkit record --out FOLDER` wrote; None: what comes with the package.

    Raises:
        ValueError: No such record; the message says what there is.
        RecordError: The file is not a record.
    """
    found = listing(
        Path(folder) if folder is not None else Path(labkit.__file__).parent / "records"
    )
    if name is None:
        return found
    machine, _, plain = str(name).rpartition("/")
    if not NAME.fullmatch(plain) or (machine and not NAME.fullmatch(machine)):
        raise ValueError(f"recorded({name!r}): a name has letters, digits, - and _ only.")
    matching = [r for r in found if r.name == plain and machine in ("", r.path.parent.name)]
    if not matching:
        known = ", ".join(dict.fromkeys(r.name for r in found)) or "none"
        raise ValueError(f"recorded({name!r}): there is no such record. There are: {known}.")
    return matching[0].load()


def listing(folder: Path) -> Recordings:
    """Return what is recorded in `folder`: GPUs first, then by machine and name."""
    if not folder.is_dir():
        return Recordings()
    files = [*folder.glob("*.jsonl.gz"), *folder.glob("*/*.jsonl.gz")]
    found = [recording for file in files if (recording := _look(file))]
    return Recordings(sorted(found, key=lambda r: (r.kind != "gpu", r.hardware, r.name)))


def slug(hardware: str) -> str:
    """Return a machine's name as the name of a folder."""
    words = re.sub(r"\((R|TM)\)", "", hardware)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")[:64] or "machine"


def _look(file: Path) -> Recording | None:
    """Read what a record says of itself; None where it is not one."""
    try:
        with gzip.open(file, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (OSError, EOFError, gzip.zlib.error):
        return None
    first: dict[str, dict[str, Any]] = {}
    for line in head.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
            first.setdefault(event["event"], event)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if "machine" in first:
            break
    spec, machine = first.get("spec"), first.get("machine")
    name = file.name.removesuffix(".jsonl.gz")
    if not spec or not machine or not NAME.fullmatch(name):
        return None
    versions = machine.get("versions")
    return Recording(
        name,
        str(spec.get("title", ""))[:100],
        str(machine.get("name", "unknown"))[:60],
        str(machine.get("kind", "unknown")),
        str(spec.get("utc", "unknown"))[:10],
        str(versions.get("torch", "unknown") if isinstance(versions, dict) else "unknown")[:20],
        file,
        "experiment" in spec,
    )
