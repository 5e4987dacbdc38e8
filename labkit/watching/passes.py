"""One pass over a watched loader: stamps when its batches are asked for, and when they are here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from labkit.instruments.batch_contents import without_torch_modes
from labkit.instruments.hangs import say
from labkit.instruments.loader_hook import in_workers
from labkit.stamps.events import now_ns
from labkit.stamps.interrupts import OwnErrors, signal_of
from labkit.watching.recorder import Recorder

if TYPE_CHECKING:
    from typing_extensions import Self


class Pass:
    """Times each step of a pass.

    A pass ends once, by `end`: "exhausted" or "failed" when the loader says so, "left early" when
    the loop drops its iterator. It is recorded while its `number` is that of the recorder's pass
    that is `going`. All other work waits until `_write`, when a hundred steps share the cost of
    cold caches.
    """

    number = 0  # among the recorder's passes

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.steps = recorder.steps
        self.is_new = True  # until its first batch is here, or the first after an error or a pause
        self.waits = False  # for a batch
        self.asked = 0  # when the loop asked for the last one
        self.began_ns = now_ns()  # 0 once the first batch is here: iter(loader) waits for it too
        self.number = recorder.begin_pass(self.began_ns)

    def ask(self, iterator: object = None) -> object:
        """The loop asks `iterator`, which is returned, for a batch: the step before is over."""
        self.waits = True
        self.asked = now = now_ns()
        if self.number != self.recorder.going:
            return iterator
        steps = self.steps
        try:
            if steps.ready and steps.end(now):
                now = self._write(now)
            steps.ask(now)
        except Exception as error:
            self._give_up(error)
        return iterator

    def answer(self, batch: object) -> object:
        """The loop has a batch, which is returned: the body of a step begins."""
        self.waits = False
        ready = now_ns()
        if self.number != self.recorder.going and not self.is_new:
            return batch
        try:
            with without_torch_modes():
                if self.is_new:
                    self._learn(batch)
                self.steps.begin(ready, *self.recorder.batches.size_of(batch))
        except Exception as error:
            self._give_up(error)
        return batch

    def _learn(self, batch: object) -> None:
        """Learn what a batch is; set the clock back to before iter(loader), for a first one."""
        self.is_new = False
        recorder = self.recorder
        if self.number != recorder.going and recorder.has_room():
            # It was paused; or it failed, and the loop skips what it cannot read
            begin = recorder.resume if recorder.began_ns else recorder.begin_pass
            self.number = begin(self.asked)
        self.steps.asked = self.began_ns or self.asked
        self.began_ns = 0
        recorder.batches.learn(batch)
        recorder.sampler.claim(sys._getframe(2))

    def _write(self, now: int) -> int:
        """Write the steps that are over; return when the next batch is asked for."""
        recorder = self.recorder
        recorder.write_steps(now)
        if recorder.has_room() and now > recorder.beat_at:
            recorder.look(sys._getframe(2), now)
            recorder.each_beat(False)
        return now_ns()  # what this took is neither waiting nor body

    def end(self, how: str, error: BaseException | None = None) -> None:
        """End the pass; `error` is that of one which "failed"."""
        recorder = self.recorder
        if recorder.began_ns and self.number == recorder.begun and recorder.pid == os.getpid():
            with OwnErrors():
                recorder.end_pass(how, error)
                self.is_new = True  # it may have failed, and be asked again
                recorder.each_beat(True)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        if signal_of(error) is not None:
            raise error
        self.recorder.drop_pass()
        self.number = -1
        self.is_new = False
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        self.end("left early")  # its iterator is dropped: a break, a return, an error in the body


class WatchedIterator(Pass):
    """A pass that is iterated in the place of its loader's own iterator."""

    iterator: Iterator[object]

    def through(self, loader: Iterable[object]) -> Self:
        """Take its batches from a loader; the pass has failed where that has no iterator."""
        try:
            with in_workers(loader, self.recorder.next_recording()):
                self.iterator = iter(loader)  # draws a seed, starts workers
        except BaseException as error:
            self.end("failed", error)
            raise
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        self.ask()
        try:
            batch = next(self.iterator)
        except BaseException as error:
            self.end("exhausted" if isinstance(error, StopIteration) else "failed", error)
            raise
        return self.answer(batch)


class StandIn:
    """Is iterated in the place of `loader`, which answers what else is asked of it."""

    def __init__(self, loader: Any):
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:  # copying, pickling
            raise AttributeError(name)
        return getattr(self.loader, name)


def check_iterable(loader: object, by: str) -> None:
    """Raise TypeError where a loader cannot be iterated; `by` is what it was given to."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        kind = type(loader).__name__
        raise TypeError(f"{by}({kind}): give it an iterable of batches, such as a DataLoader.")
