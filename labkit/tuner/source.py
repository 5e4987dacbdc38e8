"""The reader's own data, on its way into a process of its own: by name, or by value.

What is given as "module:name" is imported there. Objects travel as a file in the run's folder,
written by the user's kernel, read and deleted by its own child; no record ever holds one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.bench.their_loop import knobs_of
from labkit.spec import Pipeline
from labkit.tuner.tuning import Setting

NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
PAYLOAD = "source.pkl"
MAX_PAYLOAD = 512 * 2**20  # bytes; a larger data set is better made where it is used


@dataclass(frozen=True)
class Source:
    """A dataset, and the collate_fn and step that go with it, ready to be sent."""

    name: str  # what tables and snippets call the dataset
    imports: dict[str, str]  # {"dataset", "collate_fn" or "step": "module:name"}
    payload: bytes | None = field(repr=False)  # the parts given as objects, pickled by value
    parts: tuple[str, ...]  # the names of all parts that were given

    def place(self, folder: Path) -> dict[str, Any]:
        """Write the payload into a run's folder, for its owner alone; return the bench's order."""
        here = os.getcwd()
        path = [here, *(os.path.abspath(place or here) for place in sys.path)]
        order = {"imports": self.imports, "payload": None, "cwd": here, "path": path}
        if self.payload is None:
            return order
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(folder / PAYLOAD, flags, 0o600), "wb") as file:
            file.write(self.payload)
        return order | {"payload": PAYLOAD}

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete a payload that was never read, as that of a run stopped early."""
        with contextlib.suppress(OSError):
            (folder / PAYLOAD).unlink()

    def described(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return what the run's first event tells: the loader's settings, and whose data it is."""
        knobs = {name: getattr(pipeline, name) for name in Setting.__dataclass_fields__}
        return {"pipeline": knobs, "watched": {"loader": f"DataLoader({self.name})"}}


def of(dataset: Any, collate_fn: Any = None, step: Any = None) -> Source:
    """Make a Source; raises ValueError on what cannot be sent or loaded, saying why."""
    given = {"dataset": dataset, "collate_fn": collate_fn, "step": step}
    given = {name: part for name, part in given.items() if part is not None}
    imports = {name: part for name, part in given.items() if isinstance(part, str)}
    objects = {name: part for name, part in given.items() if name not in imports}
    for name, text in imports.items():
        if not NAMED.fullmatch(text):
            raise ValueError(f"{name}={text!r}: write module:function, as in 'train:make_dataset'.")
    for name, part in objects.items():
        if name != "dataset" and not callable(part):
            raise ValueError(f"{name}={part!r}: give a function of one batch.")
    kind = type(dataset).__name__
    if "dataset" in objects:
        if hasattr(dataset, "__next__"):
            raise ValueError(
                f"{kind} is a one-shot iterator: it can be read once, by one process. Pass a "
                "dataset with __len__ and __getitem__, an IterableDataset, or 'module:function' "
                "that makes one."
            )
        reads = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
        if isinstance(dataset, type) or not reads:
            made = " Pass an instance, not the class or function." if callable(dataset) else ""
            raise ValueError(f"{kind} is not a dataset: it needs __len__ and __getitem__.{made}")
    payload = _pickled(objects) if objects else None
    return Source(imports.get("dataset") or kind, imports, payload, tuple(given))


def of_loader(loader: Any, step: Any = None) -> tuple[Source, dict[str, Any]]:
    """Return the Source of a DataLoader and its settings as {knob: value}.

    Raises ValueError where it draws its batches in a way that cannot be set up again.
    """
    if loader.batch_size is None:
        raise ValueError(
            "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
            "batch_size=..., collate_fn=... instead."
        )
    knobs = {"prefetch_factor": None} | knobs_of(loader)
    if not knobs["num_workers"]:
        knobs |= {"prefetch_factor": None, "persistent_workers": False}
    return of(loader.dataset, loader.collate_fn, step), knobs


def _pickled(objects: dict[str, Any]) -> bytes:
    import cloudpickle  # plain pickle cannot carry what is defined in a notebook

    for name, part in objects.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise ValueError(
                f"{name} ({type(part).__name__}) cannot be sent to a process of its own: "
                f"{type(error).__name__}: {error}. Open files, connections and locks in "
                "__getitem__ when they are first used, or give 'module:function' that makes it."
            ) from None
    payload = cloudpickle.dumps(objects)
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"the dataset holds {len(payload) / 2**20:.0f} MiB, and would be sent to every run "
            f"(at most {MAX_PAYLOAD // 2**20} MiB): give 'module:function' that makes it."
        )
    return payload
