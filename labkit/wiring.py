"""Names of a floor above, and modules slow to import: looked up when they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

ABOVE: dict[str, str] = {}  # {"Run.plot": "labkit.view.run_figure:draw"}: see labkit/__init__.py


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
