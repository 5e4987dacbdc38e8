"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has the iterators of torch's DataLoader hooked when that is
imported: each loader that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would
give it. An optimizer's steps tell which of the loops trains.

The script gets torch's own iterators, and keeps them as they are. What is told is each call of
their `__next__`, and each `_reset`, by which persisting workers begin another pass. No frame of
ours is on the stack while torch's or the script's code runs, unless headroom is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from labkit.instruments import loader_hook, stack
from labkit.instruments.before_calls import Before, Call, attributes_of
from labkit.instruments.hangs import say
from labkit.instruments.loader_knobs import length_of
from labkit.stamps.interrupts import signal_of
from labkit.watching.headroom import Headroom
from labkit.watching.passes import Pass
from labkit.watching.recorder import Recorder
from labkit.watching.run_folders import new_folder

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

SHOWN = os.path.join(stack.HOME, "view", "")  # the modules with `lk.watch`
HEADROOM = bool(os.environ.get("LABKIT_HEADROOM"))  # now: a script may clear its environment
MOST_LOADERS = 8  # loaders of a process that are recorded: training, validation, test, ...


def users_place(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, int] | None:
    """Return the file and line of the innermost frame with code of the user's; None without."""
    places = ((frame.f_code.co_filename, line) for frame, line in frames)
    return next((place for place in places if stack.is_users(place[0])), None)


class HookedPass(Pass):
    """A pass whose iterator is torch's: what asks it for a batch is made for each call anew."""

    def next_of(self, iterator: object, plain: Callable) -> Callable[[], object]:
        """Return what asks `iterator` for a batch as its `plain` method does, in C but for us."""
        call = Call.of(self.answer, over=self.over)
        asked = map(self.ask, itertools.repeat(iterator))  # again, where a script keeps the method
        return map(call, map(plain, asked)).__next__

    def over(self) -> None:
        """The call is over: it gave a batch, the pass is exhausted, or an error goes through."""
        if self.waits:
            self.waits = False
            self.end("exhausted")  # whether by an error cannot be seen from here


class WatchedScript:
    """The loops of this process that are recorded, and their passes."""

    def __init__(self):
        self.pid = os.getpid()
        self.loops: list[Recorder] = []
        self.passes: WeakKeyDictionary[object, HookedPass] = WeakKeyDictionary()  # by iterator
        self.headroom: dict[Recorder, Headroom] = {}
        self.error: Exception | None = None  # why a loop, or a part of it, is not recorded
        self.plain_next: Any = None  # of torch's iterators, which is hooked

    # -- its loops ---------------------------------------------------------------------------------

    def loop_of(self, loader: Any) -> Recorder | None:
        """Return what records a loop; None in processes and of loops that are not recorded.

        A loop that makes its loader anew for every epoch, or its dataset as well, continues its
        run; a function that trains on one dataset and validates on another has two. Where all code
        is a framework's, the dataset tells.
        """
        if self.pid != os.getpid():  # a worker, or a fork
            return None
        frames = list(traceback.walk_stack(sys._getframe(2)))
        if any(frame.f_code.co_filename.startswith(SHOWN) for frame, _ in frames):
            return None  # within `lk.watch`, which records it
        place = users_place(frames)
        dataset = attributes_of(loader).get("dataset")
        here = [loop for loop in self.loops if loop.place == place]
        same = [loop for loop in here if loop.dataset() is dataset]
        if place:
            same += [loop for loop in here if loop.dataset() is None and not loop.going]
        if same:
            same[0].feed_from(loader)
            return same[0]
        if len(self.loops) < MOST_LOADERS and not self.error:
            try:
                if folder := new_folder(self.pid):
                    self.loops.append(Recorder(folder, loader, place))
                    return self.loops[-1]
            except Exception as error:
                if signal_of(error) is not None:
                    raise
                self.error = error
        return None

    # -- what torch tells --------------------------------------------------------------------------

    def hook_iterators(self, kind: Any) -> None:
        """Be told of each iterator of torch's class `kind`, and of each call of it."""
        self.plain_next = kind.__next__
        loader_hook.install()
        loader_hook.BEGUN.append(self.begin_pass)
        kind.__next__ = Before(self._next_of, self.plain_next)
        kind._reset = Before(self._reset, kind._reset)

    def hook_loaders(self, kind: Any) -> None:
        """Have some batches of each loader of torch's class `kind` replayed, for its headroom."""
        iterate = kind.__iter__

        def replayed(loader: DataLoader) -> Iterator[object]:
            live = iterate(loader)
            recorded = self.passes.get(live)
            if recorded is None:
                return live
            room = self.headroom.setdefault(recorded.recorder, Headroom(loader))
            room.loader = None  # its dataset may be gone before the next one is made
            return room.alternate(live, length_of(loader), recorded)

        kind.__iter__ = replayed

    def begin_pass(self, iterator: object, loader: Any) -> loader_hook.Recording | None:
        """Begin a pass over `loader`; return how its processes record themselves."""
        loop = self.loop_of(loader)
        if loop is None or not loop.has_room():
            return None
        self.passes[iterator] = HookedPass(loop)
        return loop.next_recording()

    def _pass_of(self, iterator: object) -> HookedPass | None:
        """Return the pass of an iterator; None where it is not recorded, as in a fork."""
        return self.passes.get(iterator) if self.pid == os.getpid() else None

    def _next_of(self, iterator: object) -> Callable[[], object] | None:
        found = self._pass_of(iterator)
        return None if found is None else found.next_of(iterator, self.plain_next)

    def _reset(self, iterator: object) -> None:
        found = self._pass_of(iterator)
        # Where its workers persist, the next pass has the same iterator
        if found is not None and found.asked and found.recorder.has_room():
            self.passes[iterator] = HookedPass(found.recorder)

    def note_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that an optimizer has made a step: one of a loop that trains, with its loaders."""
        going = {loop.began_ns: loop for loop in self.loops if loop.going}
        for loop in going.values():
            if loop.place == going[max(going)].place:
                loop.trained_by(optimizer)

    def close(self) -> None:
        """End the runs, with the error that ended the script, where one did."""
        if self.pid != os.getpid():
            return
        for loop in [*self.loops]:
            with contextlib.suppress(Exception):
                loop.close(getattr(sys, "last_value", None))
            self.error = self.error or loop.log.error
        if self.error:
            say(f"not recording: {type(self.error).__name__}: {self.error}")


SCRIPT = WatchedScript()


def install(module: ModuleType) -> None:
    """Hook a module of DataLoaders, or torch's of optimizers, when it has just been loaded."""
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is not None:
        SCRIPT.hook_iterators(iterators)
        if HEADROOM:
            SCRIPT.hook_loaders(vars(module)["DataLoader"])
    else:  # torch.compile may trace what is hooked: not this
        untraced = sys.modules["torch"]._disable_dynamo(lambda *given: SCRIPT.note_step(*given))
        module.register_optimizer_step_post_hook(untraced)
    atexit.unregister(SCRIPT.close)
    atexit.register(SCRIPT.close)


def install_now() -> None:
    """Hook torch's modules where they are loaded, unless `labkit watch` has done so."""
    if SCRIPT.plain_next is None:
        for name in ("torch.utils.data.dataloader", "torch.optim.optimizer"):
            install(importlib.import_module(name))
