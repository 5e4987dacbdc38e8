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
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

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
MOST_LOADERS = 8  # loaders of a process that are recorded: training, validation, test, ...
PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded


@dataclass
class WatchedLoop:
    """A loop that is recorded: known by its place in the script, if any, and by its dataset."""

    recorder: Recorder
    place: tuple[str, int] | None = None
    dataset: int | None = None  # its id; None once it is gone, as another may get that
    blocks: Alternation | None = None  # where its headroom is measured
    has_trained: bool = False  # only then may it be given a batch again: a validation may not

    def feed_from(self, loader: object) -> None:
        """Note whose items it has now."""
        dataset = held(loader).get("dataset", loader)
        if self.dataset != id(dataset):
            self.dataset = id(dataset)
            with contextlib.suppress(TypeError):  # a list
                weakref.finalize(dataset, setattr, self, "dataset", None)


class WatchedScript:
    """The loops of this process that are recorded."""

    def __init__(self):
        self.has_headroom = bool(os.environ.get("LABKIT_HEADROOM"))
        self.pid = os.getpid()
        self.loops: list[WatchedLoop] = []
        self.said = False  # that a loop, or a part of it, is not recorded
        self.plain_next: Any = None  # of torch's iterators, which is hooked
        self.asked: Recorder | None = None  # whose pass was asked for a batch last

    @property
    def is_here(self) -> bool:
        """Whether this is its process: no worker, nor another one that was forked."""
        return self.pid == os.getpid()

    def loop_of(self, loader: DataLoader) -> WatchedLoop | None:
        """Return what records a loop; None in processes and of loops that are not recorded.

        A loop that makes its loader anew for every epoch, or its dataset as well, continues its
        run; a function that trains on one dataset and validates on another has two. Where all code
        is a framework's, the dataset tells.
        """
        if not self.is_here:
            return None
        frames = list(traceback.walk_stack(sys._getframe(2)))
        if any(frame.f_code.co_filename.startswith(SHOWN) for frame, _ in frames):
            return None  # within `lk.watch`, which records it
        places = ((frame.f_code.co_filename, line) for frame, line in frames)
        place = next((place for place in places if stack.is_users(place[0])), None)
        here = [loop for loop in self.loops if loop.place == place]
        same = [loop for loop in here if loop.dataset == id(held(loader).get("dataset"))]
        if place:
            over = (loop for loop in here if not loop.recorder.going)
            same += [loop for loop in over if loop.dataset is None]
        if not same:
            return self.begin(loader, place)
        same[0].feed_from(loader)
        return same[0]

    def begin(self, loader: object, place: tuple[str, int] | None) -> WatchedLoop | None:
        """Begin a run, in a folder whose name begins with the rank; None if that fails."""
        if len(self.loops) >= MOST_LOADERS or self.said:
            return None
        if place is None and not self.loops and is_recorded(self.pid):
            return None  # by `lk.watch`
        try:
            folder = new_folder(self.pid)
            if folder is None:
                return None
            loop = WatchedLoop(Recorder(folder, loader, place=place), place)
            self.loops.append(loop)
            loop.feed_from(loader)
            if self.has_headroom:
                loop.blocks = Alternation(loader)
            hook_saving(self.loops[0].recorder.log)
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

    def note_training(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the innermost loop trains: the last to begin, with all its loaders."""
        going = [loop for loop in self.loops if loop.recorder.going]
        if going:
            innermost = max(going, key=lambda each: each.recorder.began_ns)
            innermost.has_trained = True
            for loop in going:
                if loop is innermost or (loop.place and loop.place == innermost.place):
                    loop.recorder.trained_by(optimizer)

    def close(self) -> None:
        """End the runs, with the error that ended the script, where one did."""
        if not self.is_here:
            return
        error = getattr(sys, "last_value", None)
        frames = traceback.walk_tb(error and error.__traceback__)
        if self.asked and any(each.f_code is self.plain_next.__code__ for each, _ in frames):
            self.asked.how = ""  # its pass was not exhausted: the error came out of the loader
        for loop in self.loops:
            with contextlib.suppress(Exception):
                if loop.blocks is not None and loop.has_trained:
                    loop.blocks.write(loop.recorder.log)
                loop.recorder.close(error)
            if loop.recorder.log.error is not None:
                self._say_once(loop.recorder.log.error)


SCRIPT = WatchedScript()


def install(module: ModuleType) -> None:
    """Hook a module of DataLoaders, or torch's of optimizers, when it has just been loaded."""
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is None:
        steps = OptimizerSteps(SCRIPT)
        # torch.compile may trace what is hooked: not this
        untraced = sys.modules["torch"]._disable_dynamo(lambda *given: steps(*given))
        module.register_optimizer_step_post_hook(untraced)
    else:
        HookedPasses(SCRIPT, iterators)
    atexit.unregister(SCRIPT.close)
    atexit.register(SCRIPT.close)


class HookedPass(Pass):
    """A pass whose iterator is torch's: what asks it for a batch is made for each call anew."""

    def __init__(self, loop: WatchedLoop, loader: DataLoader):
        super().__init__(loop.recorder)
        self.loader = ref(loader)
        self.turns: AlternatingPass | None = None
        if loop.blocks is not None:
            length = loop.recorder.length or length_of(loader)
            self.turns = AlternatingPass(loop.blocks, length, self, lambda: loop.has_trained)

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


class HookedPasses:
    """The passes that go on in this process."""

    def __init__(self, script: WatchedScript, kind: Any):
        """`kind` is torch's class of iterators, which is hooked."""
        self.script = script
        self.passes: WeakKeyDictionary[object, HookedPass] = WeakKeyDictionary()  # by iterator
        self.plain = script.plain_next = kind.__next__
        loader_hook.install()
        loader_hook.HOOKS.begun.append(self.begin)
        kind.__next__ = Before(self._next_of, self.plain)
        kind._reset = Before(self._reset, kind._reset)

    def begin(self, iterator: object, loader: Any) -> loader_hook.Recording | None:
        """Begin a pass over `loader`; return how its processes record themselves."""
        loop = self.script.loop_of(loader)
        if loop is None or not loop.recorder.has_room():
            return None
        self.passes[iterator] = HookedPass(loop, loader)
        return loop.recorder.next_recording()

    def _of(self, iterator: object) -> HookedPass | None:
        """Return the pass of an iterator; None where it is not recorded, as in a fork."""
        found = self.passes.get(iterator)
        return found if found is not None and found.recorder.pid == os.getpid() else None

    def _next_of(self, iterator: object) -> Callable[[], object] | None:
        found = self._of(iterator)
        self.script.asked = found and found.recorder
        return None if found is None else found.next_of(iterator, self.plain)

    def _reset(self, iterator: object) -> None:
        found = self._of(iterator)
        if found is None:
            return
        if not found.asked:  # its workers have been started
            found.lead_ns = now_ns() - found.began_ns
            return
        loader = found.loader()
        if loader is not None:  # its workers persist: the next pass has the same iterator
            self.begin(iterator, loader)


class OptimizerSteps:
    """The steps of a loop without a DataLoader: from one `optimizer.step()` to the next.

    It also tells which of the loops with one train.
    """

    def __init__(self, script: WatchedScript):
        self.script = script
        self.seen = 0  # steps
        self.first_id: int | None = None  # of the optimizer that made the first
        self.recorded: Pass | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        if self.script.loops and self.recorded is None:
            self.script.note_training(optimizer)
            return  # a DataLoader says more
        self.first_id = self.first_id or id(optimizer)
        if self.first_id != id(optimizer) or not self.script.is_here:
            return  # of several optimizers the first one counts
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # into a CUDA graph: an event that is asked now would break the capture
        self.seen += 1
        with OwnErrors():
            if self.seen == PATIENCE:
                loop = self.script.begin(self, None)
                if loop is None:
                    return
                loop.recorder.trained_by(optimizer)
                self.recorded = Pass(loop.recorder)
            if self.recorded is not None:
                self.recorded.ask()
                self.recorded.answer(None)


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
