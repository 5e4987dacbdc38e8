"""Recorded runs: list what is there, load one.

A recorded run is `<machine>/<name>.jsonl.gz` in the package; what it is stands in its first events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas

from labkit.api import Loaded, load
from labkit.stamps.record import head_of
from labkit.text import one_line

RECORDS = Path(__file__).parent / "records"
SUFFIX = ".jsonl.gz"
COLUMNS = ["name", "title", "hardware"]  # of the listing


def recorded(name: str | None = None) -> pandas.DataFrame | Loaded:
    """List the recorded runs, or load the one called `name`; ValueError where it is not there.

    Of several machines a GPU's comes first; `"<machine>/<name>"` asks for one.
    """
    rows = [row for row in map(_row, RECORDS.rglob(f"*{SUFFIX}")) if row]
    rows.sort(key=lambda row: (row["kind"] != "gpu", row["hardware"], row["name"]))
    if name is None:
        return pandas.DataFrame(rows, columns=COLUMNS)
    for row in rows:
        if name in (row["name"], row["full"]):
            return load(row["path"])
    available = ", ".join(row["full"] for row in rows)
    raise ValueError(f"Unknown record {name!r}; available: {available or 'none'}.")


def _row(file: Path) -> dict[str, Any] | None:
    """Return what a record's first events say of it; None where it is none."""
    head = head_of(file)
    if not head.keys() >= {"spec", "machine"}:
        return None
    spec, machine = head["spec"], head["machine"]
    name = one_line(file.name.removesuffix(SUFFIX))
    return {
        "name": name,
        "full": f"{file.parent.name}/{name}",
        "title": spec.get("title", ""),
        "hardware": machine["name"],
        "kind": machine["kind"],
        "path": file,
    }
