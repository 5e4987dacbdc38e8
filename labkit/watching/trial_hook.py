"""Changes the loader of a script that `labkit tune` runs, in the script's own process.

`labkit tune -- python train.py` starts the script once for each trial, watched, with an `Order` in
$LABKIT_TRIAL. The loader that is made in the order's place then gets other arguments, or hands out
its first batches again and again. What comes of it stands in the record of the loop that it feeds.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, TypedDict

from labkit.instruments.before_calls import held
from labkit.instruments.loader_knobs import length_of
from labkit.instruments.stack import is_users
from labkit.knobs import Settings
from labkit.spec import WITHOUT_WORKERS
from labkit.stamps.interrupts import OwnErrors
from labkit.watching.headroom import Kept
from labkit.watching.loader_call import MADE

NEEDS_WORKERS = (*WITHOUT_WORKERS, "timeout", "multiprocessing_context")


class Order(TypedDict):
    """What one trial changes."""

    site: str  # "file:line" where the loader is made; "": change nothing
    changes: Settings  # its other arguments
    ready: bool  # whether its first batches are handed out again and again


def install(module: ModuleType, order: str) -> None:
    """Hook torch's module of loaders, when it has just been loaded, as an `Order` in JSON asks."""
    if hasattr(module, "DataLoader"):
        hook(vars(module)["DataLoader"], json.loads(order))


def hook(kind: Any, order: Order) -> None:
    """Hook how a loader is made, which then knows where, and how a pass over it begins."""
    make, iterate = kind.__init__, kind.__iter__
    signature = inspect.signature(make)
    kept = Kept()

    @functools.wraps(make)
    def made(loader: Any, /, *args: Any, **kwargs: Any) -> None:
        site = site_of(sys._getframe(1), loader)
        if site == order["site"]:
            with OwnErrors():
                bound = signature.bind(loader, *args, **kwargs)
                args, kwargs = with_changes(bound, order["changes"])
        make(loader, *args, **kwargs)
        setattr(loader, MADE, site)

    @functools.wraps(iterate)
    def iterated(loader: Any) -> Iterator[object]:
        batches = iterate(loader)
        if order["ready"] and held(loader).get(MADE) == order["site"]:
            again = replayed(kept, batches._next_data, length_of(loader))
            batches._next_data = again.__next__
        return batches

    kind.__init__, kind.__iter__ = made, iterated


def site_of(frame: FrameType | None, loader: object) -> str:
    """Return the user's line that makes a loader, at once or through a library."""
    while frame is not None and (
        not is_users(frame.f_code.co_filename)
        or (frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader)
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def replayed(kept: Kept, live: Callable[[], object], length: int | None) -> Iterator[object]:
    """Yield a loader's first batches, then these again and again: `length` in all."""
    for _ in itertools.count() if length is None else range(length):
        if not kept.is_full:
            try:
                kept.keep(live())
            except StopIteration:
                return
        yield kept.again()


def with_changes(
    bound: inspect.BoundArguments, changes: Settings
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a DataLoader, itself left out, with others in their place.

    Without workers, those that need some are left out.
    """
    bound.arguments.update(changes)
    if not bound.arguments.get("num_workers"):
        for name in NEEDS_WORKERS:
            bound.arguments.pop(name, None)
    return bound.args[1:], bound.kwargs
