"""Recorded runs: list what is there, load one.

A recorded run is `<machine>/<name>.jsonl.gz` in the package or in a folder of records; what
it is stands in its first events.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import labkit
from labkit.api import Loaded, load
from labkit.stamps.record import head_of
from labkit.text import one_line

if TYPE_CHECKING:
    import pandas

SUFFIX = ".jsonl.gz"
COLUMNS = ["name", "title", "hardware", "date", "torch"]  # of the listing


def recorded(
    name: str | None = None, folder: str | os.PathLike[str] | None = None
) -> pandas.DataFrame | Loaded:
    """List the recorded runs, or load the one called `name`; ValueError where it is not there.

    Of several machines a GPU's comes first; `"<machine>/<name>"` asks for one. `folder` is what
    `maintain/recordings.py --out FOLDER` wrote; None: what comes with the package.
    """
    place = Path(labkit.__file__).parent / "records" if folder is None else Path(folder)
    files = [*place.glob(f"*{SUFFIX}"), *place.glob(f"*/*{SUFFIX}")]
    rows = [row for row in map(_row, files) if row]
    rows.sort(key=lambda row: (row["kind"] != "gpu", row["hardware"], row["name"]))
    if name is None:
        import pandas

        return pandas.DataFrame(rows, columns=COLUMNS)
    known = {f"{row['path'].parent.name}/{row['name']}": row["path"] for row in rows}
    for full, path in known.items():
        if name in (full, full.partition("/")[2]):
            return load(path)
    of_machine = [full for full in known if full.startswith(f"{str(name).rpartition('/')[0]}/")]
    available = ", ".join(of_machine or known) or "none"
    raise ValueError(f"Unknown record {name!r}; available: {available}.")


def _row(file: Path) -> dict[str, Any] | None:
    """Return what a record's first events say of it; None where it is none."""
    head = head_of(file)
    if not head.keys() >= {"spec", "machine"}:
        return None
    spec, machine = head["spec"], head["machine"]
    return {
        "name": one_line(file.name.removesuffix(SUFFIX)),
        "title": str(spec.get("title", ""))[:100],
        "hardware": machine["name"][:60],
        "date": str(spec.get("utc", "unknown"))[:10],
        "torch": str(machine["versions"].get("torch", "unknown"))[:20],
        "kind": machine["kind"],
        "path": file,
    }
