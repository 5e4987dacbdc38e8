"""What a lower floor may call of a floor above it, by name: `labkit/__init__.py` fills the table.

A `Run` can draw itself and give its verdict, and neither figures nor rules may be known where runs
are read. So imports point down only, and the names that point up stand in one place, at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

ABOVE: dict[str, str] = {}  # "Run.plot" -> "labkit.show.run_figure:draw"


def above(name: str) -> Callable[..., Any]:
    """Return the function that stands in the table under `name`; raises KeyError without one."""
    module, _, attribute = ABOVE[name].partition(":")
    return getattr(import_module(module), attribute)
