"""What is looked up when it is used: names of a floor above, and modules that are slow to import.

Imports point down only; the names that point up stand in one table, filled in `labkit/__init__.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

ABOVE: dict[str, str] = {}  # "Run.plot" -> "labkit.show.run_figure:draw"


def above(name: str) -> Callable[..., Any]:
    """Return the function that stands in the table under `name`; raises KeyError without one."""
    module, _, attribute = ABOVE[name].partition(":")
    return getattr(import_module(module), attribute)


class Later:
    """A module that is imported when its first attribute is used.

    An experiment's file is read in the kernel, which must not import torch, and in the bench, which
    must not import matplotlib: `torch = Later("torch")`.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = sys.modules.get(self._name) or import_module(self._name)
        return getattr(module, attribute)  # a microsecond: not for a timed loop
