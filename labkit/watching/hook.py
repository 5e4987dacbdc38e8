"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has the iterators of torch's DataLoader hooked when that is
imported: each loader that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would
give it. A script that feeds itself without one gets a run whose steps are those of its optimizer.

The script gets torch's own iterators, and keeps them as they are. What is told is each call of
their `__next__`, and each `_reset`, by which persisting workers begin another pass. No frame of
ours is on the stack while torch's or the script's code runs.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from labkit.instruments import loader_hook, stack
from labkit.instruments.before_calls import Before, Call, held
from labkit.instruments.loader_knobs import length_of
from labkit.instruments.messages import say
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.interrupts import OwnErrors, signal_of
from labkit.watching.headroom import AlternatingPass, Alternation
from labkit.watching.passes import Pass
from labkit.watching.recorder import Recorder
from labkit.watching.run_folders import is_recorded, new_folder

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

SHOWN = os.path.join(stack.HOME, "view", "")  # the modules with `lk.watch`
HEADROOM = bool(os.environ.get("LABKIT_HEADROOM"))  # now: a script may clear its environment
MOST_LOADERS = 8  # loaders of a process that are recorded: training, validation, test, ...
PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded


class HookedPass(Pass):
    """A pass whose iterator is torch's: what asks it for a batch is made for each call anew."""

    def __init__(self, recorder: Recorder, loader: DataLoader, blocks: Alternation | None):
        """`blocks` are those of its headroom, where that is measured."""
        super().__init__(recorder)
        self.loader = weakref.ref(loader)
        self.turns: AlternatingPass | None = None
        if blocks is not None:  # a loop that only validates is given no batch again
            length = recorder.length or length_of(loader)
            self.turns = AlternatingPass(blocks, length, self, lambda: recorder.has_trained)

    def next_of(self, iterator: object, plain: Callable) -> Callable[[], object]:
        """Return what asks `iterator` for a batch as its `plain` method does, in C but for us."""
        answer = self.answer
        if self.turns is not None:
            instead = self.turns.take()
            if instead is not None:
                return instead.__next__
            answer = self.answer_to_keep
        call = Call.of(answer, over=self.over)
        asked = map(self.ask, itertools.repeat(iterator))  # again, where a script keeps the method
        return map(call, map(plain, asked)).__next__

    def answer_to_keep(self, batch: object) -> object:
        """As `answer`, with a batch of which some may be replayed."""
        assert self.turns is not None
        return self.turns.given(self.answer(batch))

    def over(self) -> None:
        """The call is over: it gave a batch, the pass is exhausted, or an error goes through."""
        if self.waits:
            self.waits = False
            self.end("exhausted")
            SCRIPT.ended = self.recorder


class WatchedScript:
    """The loops of this process that are recorded, and their passes."""

    def __init__(self):
        self.pid = os.getpid()
        self.loops: list[Recorder] = []
        self.blocks: dict[Recorder, Alternation] = {}  # of those whose headroom is measured
        self.passes: WeakKeyDictionary[object, HookedPass] = WeakKeyDictionary()  # by iterator
        self.said = False  # that a loop, or a part of it, is not recorded
        self.plain_next: Any = None  # of torch's iterators, which is hooked
        self.ended: Recorder | None = None  # whose pass ended last
        self.optimizer: int | None = None  # id of the first that made a step without a loader
        self.steps = 0  # that it made
        self.without_loader: Pass | None = None  # whose steps are the optimizer's

    # -- its loops ---------------------------------------------------------------------------------

    def loop_of(self, loader: DataLoader) -> Recorder | None:
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
        places = ((frame.f_code.co_filename, line) for frame, line in frames)
        place = next((place for place in places if stack.is_users(place[0])), None)
        here = [loop for loop in self.loops if loop.place == place]
        same = [loop for loop in here if loop.dataset == id(held(loader).get("dataset"))]
        if place:
            same += [loop for loop in here if loop.dataset is None and not loop.going]
        if not same:
            return self.begin_loop(loader, place)
        same[0].feed_from(loader)
        return same[0]

    def begin_loop(self, loader: object, place: tuple[str, int] | None) -> Recorder | None:
        """Begin a run, in a folder whose name begins with the rank; None if that fails."""
        if len(self.loops) >= MOST_LOADERS or self.said:
            return None
        if place is None and not self.loops and is_recorded(self.pid):
            return None  # by `lk.watch`
        try:
            folder = new_folder(self.pid)
            if folder is None:
                return None
            loop = Recorder(folder, loader, place=place)
            self.loops.append(loop)
            loop.feed_from(loader)
            if HEADROOM:
                self.blocks[loop] = Alternation(loader)
            hook_saving(self.loops[0].log)
            return loop
        except Exception as error:
            if signal_of(error) is not None:
                raise
            self._say_once(error)
        return None

    def _say_once(self, error: Exception) -> None:
        """Say that a loop, or a part of it, is not recorded: a full disk may say so of each."""
        if not self.said:
            say(f"not recording: {type(error).__name__}: {error}")
        self.said = True

    # -- what torch tells --------------------------------------------------------------------------

    def hook_iterators(self, kind: Any) -> None:
        """Be told of each iterator of torch's class `kind`, and of each call of it."""
        self.plain_next = kind.__next__
        loader_hook.install()
        loader_hook.HOOKS.begun.append(self.begin_pass)
        kind.__next__ = Before(self._next_of, self.plain_next)
        kind._reset = Before(self._reset, kind._reset)

    def begin_pass(self, iterator: object, loader: Any) -> loader_hook.Recording | None:
        """Begin a pass over `loader`; return how its processes record themselves."""
        loop = self.loop_of(loader)
        if loop is None or not loop.has_room():
            return None
        self.passes[iterator] = HookedPass(loop, loader, self.blocks.get(loop))
        return loop.next_recording()

    def _pass_of(self, iterator: object) -> HookedPass | None:
        """Return the pass of an iterator; None where it is not recorded, as in a fork."""
        return self.passes.get(iterator) if self.pid == os.getpid() else None

    def _next_of(self, iterator: object) -> Callable[[], object] | None:
        found = self._pass_of(iterator)
        return None if found is None else found.next_of(iterator, self.plain_next)

    def _reset(self, iterator: object) -> None:
        found = self._pass_of(iterator)
        if found is None:
            return
        loader = found.loader()
        if not found.asked:  # its workers have been started
            found.lead_ns = now_ns() - found.began_ns
        elif loader is not None:  # its workers persist: the next pass has the same iterator
            self.begin_pass(iterator, loader)

    def stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that an optimizer has made a step: one of a loop that trains, with its loaders.

        In a script without a DataLoader a step lasts from one of them to the next.
        """
        if not self.loops or self.without_loader is not None:
            self._step_without_loader(optimizer)
            return
        going = sorted((loop for loop in self.loops if loop.going), key=lambda loop: loop.began_ns)
        for loop in going:
            if loop is going[-1] or (loop.place and loop.place == going[-1].place):
                loop.trained_by(optimizer)

    def _step_without_loader(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = self.optimizer or id(optimizer)
        if self.optimizer != id(optimizer) or self.pid != os.getpid():
            return  # of several optimizers the first one counts
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # into a CUDA graph: an event that is asked now would break the capture
        self.steps += 1
        with OwnErrors():
            if self.steps == PATIENCE and (loop := self.begin_loop(self, None)):
                loop.trained_by(optimizer)
                self.without_loader = Pass(loop)
            if self.without_loader is not None:
                self.without_loader.ask()
                self.without_loader.answer(None)

    def close(self) -> None:
        """End the runs, with the error that ended the script, where one did."""
        if self.pid != os.getpid():
            return
        error = getattr(sys, "last_value", None)
        frames = traceback.walk_tb(error and error.__traceback__)
        if self.ended and any(each.f_code is self.plain_next.__code__ for each, _ in frames):
            self.ended.how = ""  # its pass was not exhausted: the error came out of the loader
        for loop in self.loops:
            with contextlib.suppress(Exception):
                if loop in self.blocks and loop.has_trained:
                    self.blocks[loop].write(loop.log)
                loop.close(error)
            if loop.log.error is not None:
                self._say_once(loop.log.error)


SCRIPT = WatchedScript()


def install(module: ModuleType) -> None:
    """Hook a module of DataLoaders, or torch's of optimizers, when it has just been loaded."""
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is not None:
        SCRIPT.hook_iterators(iterators)
    else:  # torch.compile may trace what is hooked: not this
        untraced = sys.modules["torch"]._disable_dynamo(lambda *given: SCRIPT.stepped(*given))
        module.register_optimizer_step_post_hook(untraced)
    atexit.unregister(SCRIPT.close)
    atexit.register(SCRIPT.close)


def hook_saving(log: EventLog) -> None:
    """Write into `log` from when to when `torch.save` had a file open, unless that goes on.

    `torch.save` stays torch's own function, which others pickle by its name: what is hooked is that
    the object which holds the file is entered, and what tells of the end is that it is gone.
    """
    opener = getattr(sys.modules.get("torch.serialization"), "_opener", None)
    if opener is None or type(vars(opener)["__enter__"]) is Before:
        return

    def write(began_ns: int) -> None:
        with contextlib.suppress(Exception):
            log.write("saved", began=began_ns, ended=now_ns())

    def begin(entered: object) -> None:
        if type(entered).__name__.startswith("_open_zipfile_writer"):
            weakref.finalize(entered, write, now_ns()).atexit = False

    opener.__enter__ = Before(begin, opener.__enter__)
