"""Sends loader workers that are started anew (spawn, forkserver) what a notebook defines.

They import modules, and a notebook's `__main__` is none: its classes and functions travel by value.
"""

from __future__ import annotations

import multiprocessing.reduction
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from typing import IO

import cloudpickle


class ByValuePickler(cloudpickle.Pickler):
    """Pickles as cloudpickle does, and tensors and connections as multiprocessing does."""

    # On the class, where the C pickler looks; a live view, for torch may register more
    dispatch_table = ChainMap(
        ForkingPickler._extra_reducers,  # pyright: ignore[reportAttributeAccessIssue]
        dict(cloudpickle.Pickler.dispatch_table),
    )


def dump(what: object, file: IO[bytes], protocol: int | None = None) -> None:
    """Take the place of `multiprocessing.reduction.dump`, which sends classes by name only."""
    ByValuePickler(file, protocol).dump(what)


def send_by_value() -> None:
    """From now on, processes that this one starts are sent notebooks' classes by value."""
    multiprocessing.reduction.dump = dump
