"""Which of a script's loops a loader belongs to: each has one run, whatever loaders it makes."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.instruments import stack
from labkit.instruments.before_calls import held
from labkit.instruments.messages import say
from labkit.stamps.interrupts import signal_of
from labkit.watching.alternation import Alternation
from labkit.watching.recorder import Recorder
from labkit.watching.run_folders import is_recorded, new_folder
from labkit.watching.saves import hook_saving

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from labkit.watching.hooked_passes import HookedPasses

SHOWN = os.path.join(stack.HOME, "view", "")  # the modules with `lk.watch`
MOST_LOADERS = 8  # loaders of a process that are recorded: training, validation, test, ...


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

    def close(self, error: BaseException | None) -> None:
        """End its run, with the `error` that ended the script, where one did."""
        if self.blocks is not None and self.has_trained:
            self.blocks.write(self.recorder.log)
        self.recorder.close(error)


class WatchedScript:
    """The loops of this process that are recorded."""

    def __init__(self):
        self.has_headroom = bool(os.environ.get("LABKIT_HEADROOM"))
        self.pid = os.getpid()
        self.loops: list[WatchedLoop] = []
        self.passes: HookedPasses | None = None
        self.said = False  # that a loop, or a part of it, is not recorded

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
            over = (loop for loop in here if loop.recorder.current is None)
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
        going = [loop for loop in self.loops if loop.recorder.current is not None]
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
        if self.passes is not None:
            self.passes.failed(error)
        for loop in self.loops:
            with contextlib.suppress(Exception):
                loop.close(error)
            if loop.recorder.log.error is not None:
                self._say_once(loop.recorder.log.error)
