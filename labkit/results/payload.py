"""Objects of the user's own on their way to the bench, pickled by value.

They travel as a file in the run's folder, written by the user's kernel, read and deleted by its own
child; no record ever holds one.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from labkit.orders import Order
from labkit.stamps.events import private

PAYLOAD = "user.pkl"


class ByName(cloudpickle.Pickler):
    """Sends a module of a class of its own, such as torch.backends.cudnn, by its name."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how such a module is made again; leave everything else to cloudpickle."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def dumps(part: object) -> bytes:
    """Return the pickle of a user's object."""
    pickled = io.BytesIO()
    ByName(pickled).dump(part)
    return pickled.getvalue()


@dataclass(frozen=True)
class Source:
    """A function to measure; or a dataset, and the collate_fn and step that go with it."""

    name: str  # what tables and snippets call it
    payload: bytes = field(repr=False)  # {name: part}

    @classmethod
    def of(cls, name: str, parts: Mapping[str, object], instead: str) -> Source:
        """Make a Source; ValueError names what cannot be sent, and what to do `instead`."""
        for part_name, part in parts.items():
            try:
                dumps(part)
            except Exception as error:  # whatever the user's objects raise
                raise ValueError(
                    f"{part_name} ({type(part).__name__}) cannot be sent to a process of its own: "
                    f"{type(error).__name__}: {error}. Open files and locks when they are first "
                    f"used, or {instead}."
                ) from None
        return cls(name, dumps(dict(parts)))

    def place(self, folder: Path) -> Order:
        """Write it into a run's folder, for its owner alone; return where it is found."""
        with open(folder / PAYLOAD, "xb", opener=private) as file:
            file.write(self.payload)
        here = os.getcwd()
        path = [here, *(os.path.abspath(each or ".") for each in sys.path)]
        return {"payload": PAYLOAD, "cwd": here, "path": path}
