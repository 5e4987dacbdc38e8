"""Changes the loader of a script that `labkit tune` runs, in the script's own process.

`labkit tune -- python train.py` starts the script once for each trial, watched, with a
`LoaderChange` in $LABKIT_TRIAL. The loader that is made on its line then gets other arguments, or
hands out its first batches again and again. What comes of it stands in the record of the loop that
it feeds.
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

from labkit.instruments.before_calls import attributes_of
from labkit.instruments.loader_knobs import OF_WORKERS, length_of
from labkit.knobs import Settings
from labkit.watching.headroom import Kept
from labkit.watching.hook import users_place
from labkit.watching.loader_call import MADE


class LoaderChange(TypedDict):
    """What one trial changes."""

    made: str  # "file:line" where the loader is made; "": change nothing
    changes: Settings  # its other arguments
    ready: bool  # whether its first batches are handed out again and again


def install(module: ModuleType, text: str) -> None:
    """Hook torch's module of loaders, when it has just been loaded; `text`: a `LoaderChange`, JSON.

    What is hooked is how a loader is made, which then knows where, and how a pass over it begins.
    """
    kind = vars(module).get("DataLoader")
    if kind is None:  # torch's optimizers
        return
    change: LoaderChange = json.loads(text)
    initialize, iterate = kind.__init__, kind.__iter__
    kept = Kept()

    @functools.wraps(initialize)
    def initialize_changed(loader: Any, /, *args: Any, **kwargs: Any) -> None:
        place = users_place(traceback.walk_stack(sys._getframe(1)))
        made = f"{place[0]}:{place[1]}" if place else ""
        if made == change["made"]:
            kwargs = with_changes(kwargs, change["changes"])
        initialize(loader, *args, **kwargs)
        setattr(loader, MADE, made)

    @functools.wraps(iterate)
    def iterate_changed(loader: Any) -> Iterator[object]:
        batches = iterate(loader)
        if change["ready"] and attributes_of(loader).get(MADE) == change["made"]:
            again = replay(kept, batches._next_data, length_of(loader))
            batches._next_data = again.__next__
        return batches

    kind.__init__, kind.__iter__ = initialize_changed, iterate_changed


def replay(kept: Kept, live: Callable[[], object], length: int | None) -> Iterator[object]:
    """Yield a loader's first batches, then these again and again: `length` in all."""
    for _ in itertools.islice(itertools.count(), length):
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
