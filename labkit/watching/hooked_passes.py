"""The passes of a script over torch's own iterators, which the script gets and keeps as they are.

What is told is each call of their `__next__`, and each `_reset`, by which persisting workers begin
another pass. No frame of ours is on the stack while torch's or the script's code runs.
"""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from labkit.instruments.before_calls import Before, Call
from labkit.instruments.loader_hook import HOOKS, Recording, install
from labkit.stamps.events import now_ns
from labkit.watching.alternation import AlternatingPass
from labkit.watching.batches import length_of
from labkit.watching.passes import Pass
from labkit.watching.script_loops import WatchedLoop, WatchedScript

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from labkit.watching.recorder import Recorder


class HookedPass(Pass):
    """A pass whose iterator is torch's: what asks it for a batch is made for each call anew."""

    def __init__(self, loop: WatchedLoop, loader: DataLoader):
        super().__init__(loop.recorder)
        self.loader = ref(loader)
        self.turns: AlternatingPass | None = None
        if loop.blocks is not None:
            length = loop.recorder.length or length_of(loader)
            self.turns = AlternatingPass(loop.blocks, length, self, lambda: loop.has_trained)

    def started(self) -> None:
        """Workers have been started, and torch begins to ask them for batches."""
        self.lead_ns = now_ns() - self.began_ns

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
        self.asked: Recorder | None = None  # whose pass was asked for a batch last
        self.plain = kind.__next__
        install()
        HOOKS.begun.append(self.begin)
        kind.__next__ = Before(self._next_of, self.plain)
        kind._reset = Before(self._reset, kind._reset)

    def begin(self, iterator: object, loader: Any) -> Recording | None:
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
        self.asked = found and found.recorder
        return None if found is None else found.next_of(iterator, self.plain)

    def _reset(self, iterator: object) -> None:
        found = self._of(iterator)
        if found is None:
            return
        if not found.asked:
            found.started()
            return
        loader = found.loader()
        if loader is not None:  # its workers persist: the next pass has the same iterator
            self.begin(iterator, loader)

    def failed(self, error: BaseException | None) -> None:
        """Let the pass that was asked last be one that failed, where the error came out of it."""
        frames = traceback.walk_tb(error and error.__traceback__)
        if self.asked is not None and any(each.f_code is self.plain.__code__ for each, _ in frames):
            self.asked.how = ""
