"""The files of `labkit/data`, as listings."""

from __future__ import annotations

import json
from typing import Any

from labkit.results.result import Result, Table
from labkit.results.templates import DATA


def entries(file: str) -> dict[str, Any]:
    """Return what is in a file of the data folder, by name."""
    return json.loads((DATA / file).read_text(encoding="utf-8"))


def entry(file: str, name: str, what: str) -> Any:
    """Return one entry; ValueError says which there are, of `what`."""
    found = entries(file)
    if name not in found:
        raise ValueError(f"Unknown {what} {name!r}; available: {', '.join(found)}.")
    return found[name]


class Listing(Result, tuple):
    """Several results as one table: each has its cells in `row`, their names in `HEAD`."""

    def table(self) -> Table:
        """Return a row for each."""
        return Table([each.row for each in self], self[0].HEAD, left=range(9))
