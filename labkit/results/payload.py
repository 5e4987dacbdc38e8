"""Objects of the user's own on their way to a process of its own, pickled by value."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from labkit.orders import UserSource
from labkit.stamps.events import private

PAYLOAD = "user.pkl"


class CannotSend(ValueError):
    """The part `name` cannot be pickled, and `why`."""

    def __init__(self, name: str, why: Exception):
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


def pickled(thing: object) -> bytes:
    """Return an object as bytes, which hold what a notebook defines."""
    import cloudpickle  # plain pickle only names that

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            # a module of a class of its own, such as torch.backends.cudnn
            if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(thing)
    return file.getvalue()


def sizes_of(parts: Mapping[str, object]) -> dict[str, int]:
    """Return how many bytes each part takes; CannotSend names the first that cannot be pickled."""
    sizes = {}
    for name, part in parts.items():
        try:
            sizes[name] = len(pickled(part))
        except Exception as error:  # whatever the user's objects raise
            raise CannotSend(name, error) from None
    return sizes


def place(folder: Path, data: bytes) -> UserSource:
    """Write what was pickled into a run's folder, for its owner alone; return where it is found."""
    with open(folder / PAYLOAD, "xb", opener=private) as file:
        file.write(data)
    here = os.getcwd()
    path = [here, *(os.path.abspath(each or ".") for each in sys.path)]
    return {"payload": PAYLOAD, "cwd": here, "path": path}
