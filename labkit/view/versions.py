"""Which rows were measured before a notebook's cell was edited."""

from __future__ import annotations

from labkit.results.measurements import Measurements
from labkit.view.function_payload import FunctionPayload

# What a cell measured: the function's text, the rows, and those with the text before
Version = tuple[str, Measurements, "Measurements | None"]
_versions: dict[tuple[str | None, str], Version] = {}


def earlier_version(function: FunctionPayload, measured: Measurements) -> Measurements | None:
    """Return what this cell measured before its function was edited; None if it never was.

    The rows of the same text, run again, give way to the new ones.
    """
    key = cell_id(), measured.name
    source, last, earlier = _versions.pop(key, (function.source, None, None))
    if source != function.source:
        earlier = last
    _versions[key] = function.source, measured, earlier
    return earlier


def cell_id() -> str | None:
    """Return the notebook's id of the cell that runs; None where the front end tells none."""
    from IPython import get_ipython

    shell = get_ipython()
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return parent.get("metadata", {}).get("cellId")
