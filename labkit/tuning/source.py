"""The user's own data, ready to be sent to a bench.

What is given as "module:name" is imported there. Objects travel as a file in the run's folder,
written by the user's kernel, read and deleted by its own child; no record ever holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.diagnosis.loader_code import LoopCode
from labkit.instruments.loader_knobs import knobs_of
from labkit.knobs import Settings
from labkit.orders import UserSource
from labkit.results.launch import Launched
from labkit.results.payload import CannotSend, pickled, place, sizes_of
from labkit.spec import LOADER_KNOBS
from labkit.watching.loader_call import call_of, call_with

NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
BATCH_SIZE = 32  # for a dataset that is given without one
MAX_PAYLOAD = 512 * 2**20  # bytes; a larger data set is better made where it is used
INSTEAD = "give 'module:function' that makes it"


@dataclass(frozen=True)
class Source:
    """A dataset, and the collate_fn and step that go with it, ready to be sent."""

    name: str  # what tables and snippets call the dataset
    payload: bytes = field(repr=False)  # {name: part, by value or as the text "module:name"}
    parts: tuple[str, ...]  # the names of all parts that were given

    def place(self, folder: Path) -> UserSource:
        """Write the payload into a run's folder, for its owner alone; return where it is found."""
        return place(folder, self.payload)

    def described(self, spec: Launched) -> Mapping[str, object]:
        """Return what the run's first event tells: the settings, and whose data it is."""
        knobs = {name: getattr(spec, name) for name in LOADER_KNOBS}
        return {"pipeline": knobs, "watched": {"loader": f"DataLoader({self.name})"}}


def source_of(dataset: object, **parts: object) -> Source:
    """Make a Source; raises ValueError on what cannot be sent or loaded, saying why.

    `parts` may have the `collate_fn` and the `step`; None stands for a part that is not given.
    """
    given = {"dataset": dataset, **parts}
    given = {name: part for name, part in given.items() if part is not None}
    for name, part in given.items():
        if isinstance(part, str) and not NAMED.fullmatch(part):
            raise ValueError(f"{name}={part!r}: write module:function, as in 'train:make_dataset'.")
        if name != "dataset" and not isinstance(part, str) and not callable(part):
            raise ValueError(f"{name}={part!r}: give a function.")
    if isinstance(dataset, str):
        return Source(dataset, _pickled(given), tuple(given))
    kind = type(dataset).__name__
    if hasattr(dataset, "__next__"):
        raise ValueError(
            f"{kind} is a one-shot iterator: it can be read once, by one process. Pass a "
            "dataset with __len__ and __getitem__, or an IterableDataset."
        )
    is_readable = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if isinstance(dataset, type) or not is_readable:
        raise ValueError(
            f"{kind} is not a dataset: it needs __len__ and __getitem__. Pass an instance, not "
            "the class or function."
        )
    return Source(kind, _pickled(given), tuple(given))


def own_data(what: Any, collate_fn: object, step: object) -> tuple[Source, Settings, LoopCode]:
    """Return the Source of a dataset or a DataLoader, its settings, and how its script makes it.

    Raises ValueError on what cannot be sent or loaded, saying why.
    """
    known = knobs_of(what)
    if not known:
        code = LoopCode.of(call_with(what, collate_fn=collate_fn))
        source = source_of(what, collate_fn=collate_fn, step=step)
        return source, {"batch_size": BATCH_SIZE}, code
    if collate_fn is not None:
        raise ValueError("collate_fn: a DataLoader has its own.")
    if what.batch_size is None:
        raise ValueError(
            "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
            "batch_size=..., collate_fn=... instead."
        )
    source = source_of(what.dataset, collate_fn=what.collate_fn, step=step)
    return source, known, LoopCode.of(call_of(what))


def _pickled(objects: Mapping[str, object]) -> bytes:
    """Return the objects as bytes; raise ValueError naming the one that cannot be sent."""
    try:
        sizes = sizes_of(objects)
    except CannotSend as found:
        raise ValueError(
            f"{found.name} ({type(objects[found.name]).__name__}) cannot be sent to a process of "
            f"its own: {type(found.why).__name__}: {found.why}. Open files and locks when they "
            f"are first used, or {INSTEAD}."
        ) from None
    payload = pickled(objects)
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"what is sent to every run holds {len(payload) / 2**20:.0f} MiB (at most "
            f"{MAX_PAYLOAD // 2**20}), most of it the {max(sizes, key=sizes.__getitem__)}: "
            f"{INSTEAD}."
        )
    return payload
