"""The user's own data, ready to be sent to a bench.

What is given as "module:name" is imported there.
"""

from __future__ import annotations

import re
from typing import Any

from labkit.diagnosis.loader_code import LoopCode
from labkit.instruments.loader_knobs import knobs_of
from labkit.knobs import Settings
from labkit.results.payload import Source
from labkit.watching.loader_call import call_of, call_with

NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
BATCH_SIZE = 32  # for a dataset that is given without one
INSTEAD = "give 'module:function' that makes it"


def source_of(dataset: object, step: object = None, collate_fn: object = None) -> Source:
    """Make a Source; raises ValueError on what cannot be sent or loaded, saying why."""
    given = {"dataset": dataset, "step": step, "collate_fn": collate_fn}
    given = {name: part for name, part in given.items() if part is not None}
    for name, part in given.items():
        if isinstance(part, str) and not NAMED.fullmatch(part):
            raise ValueError(f"{name}={part!r}: write module:function, as in 'train:make_dataset'.")
    if step is not None and not isinstance(step, str) and not callable(step):
        raise ValueError(f"step={step!r}: give a function of one batch.")
    if isinstance(dataset, str):
        return Source.of(dataset, given, INSTEAD)
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
    return Source.of(kind, given, INSTEAD)


def own_data(what: Any, step: object) -> tuple[Source, Settings, LoopCode]:
    """Return the Source of a dataset or a DataLoader, its settings, and how its script makes it.

    Raises ValueError on what cannot be sent or loaded, saying why.
    """
    known = knobs_of(what)
    if not known:
        return source_of(what, step), {"batch_size": BATCH_SIZE}, LoopCode.of(call_with(what))
    if what.batch_size is None:
        raise ValueError(
            "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
            "batch_size=... instead."
        )
    source = source_of(what.dataset, step, what.collate_fn)
    return source, known, LoopCode.of(call_of(what))
