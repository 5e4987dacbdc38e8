"""Changes the loader of a script that `labkit tune` runs, in the script's own process.

`labkit tune -- python train.py` starts the script once for each trial, watched, with a `TrialOrder`
in $LABKIT_TRIAL. The loader that is made in the order's place then gets other arguments, or hands
out its first batches again and again. What comes of it stands in the record of the loop that it
feeds.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypedDict

from labkit.instruments.before_calls import held
from labkit.instruments.loader_knobs import OF_WORKERS, length_of
from labkit.knobs import Settings
from labkit.watching.headroom import Kept
from labkit.watching.hook import users_place
from labkit.watching.loader_call import MADE


class TrialOrder(TypedDict):
    """What one trial changes."""

    site: str  # "file:line" where the loader is made; "": change nothing
    changes: Settings  # its other arguments
    ready: bool  # whether its first batches are handed out again and again


def install(module: ModuleType, text: str) -> None:
    """Hook torch's module of loaders, when it has just been loaded, as a `TrialOrder` in JSON asks.

    That is how a loader is made, which then knows where, and how a pass over it begins.
    """
    kind = vars(module).get("DataLoader")
    if kind is None:  # torch's optimizers
        return
    order: TrialOrder = json.loads(text)
    make, iterate = kind.__init__, kind.__iter__
    kept = Kept()

    @functools.wraps(make)
    def made(loader: Any, /, *args: Any, **kwargs: Any) -> None:
        place = users_place(traceback.walk_stack(sys._getframe(1)))
        site = f"{place[0]}:{place[1]}" if place else ""
        if site == order["site"]:
            kwargs = with_changes(kwargs, order["changes"])
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


def replayed(kept: Kept, live: Callable[[], object], length: int | None) -> Iterator[object]:
    """Yield a loader's first batches, then these again and again: `length` in all."""
    for _ in itertools.count() if length is None else range(length):
        if not kept.is_full:
            try:
                kept.keep(live())
            except StopIteration:
                return
        yield kept.again()


def with_changes(kwargs: Settings, changes: Settings) -> Settings:
    """Return the named arguments of a DataLoader with others in their place.

    Without workers, those that need some are left out.
    """
    changed = kwargs | changes
    left_out = () if changed.get("num_workers") else OF_WORKERS
    return {name: value for name, value in changed.items() if name not in left_out}
