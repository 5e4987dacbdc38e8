"""One pass over a watched loader: stamps when its batches are asked for, and when they are here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from labkit.instruments.batch_contents import unseen
from labkit.instruments.messages import say
from labkit.stamps.events import now_ns
from labkit.stamps.interrupts import OwnErrors, signal_of
from labkit.watching.recorder import Recorder

if TYPE_CHECKING:
    from typing_extensions import Self

BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself

Beat = Callable[[int | None], None]
"""What is called twice a second with the time, ns, and with None when a pass is over."""


class Pass:
    """Times each step of a pass.

    A pass ends once, by `end`: "exhausted" or "failed" when the loader says so, "left early" when
    the loop drops its iterator. It is recorded until a newer one has begun. All other work waits
    until `_write`, when a hundred steps share the cost of cold caches.
    """

    def __init__(self, recorder: Recorder, lead_ns: int = 0, beat: Beat | None = None):
        """`lead_ns` is how long iter(loader) took."""
        self.recorder = recorder
        self.steps = recorder.steps
        self.beat = beat or recorder.beat
        self.handed = 0  # batches, whether they are recorded or not
        self.is_new = True  # until its first batch is here, or the first after an error
        self.is_paused = False
        self.waits = False  # for a batch
        self.asked = 0  # when the loop asked for the last one
        self.lead_ns = lead_ns  # counts as waiting for the first batch: workers were started
        self.beat_at = 0
        self.began_ns = now_ns() - lead_ns
        self.number = 0
        self._begin(self.began_ns)

    def _begin(self, began_ns: int) -> None:
        if self.recorder.has_room():
            self.number = self.recorder.begin_pass(began_ns)

    def ask(self, iterator: object = None) -> object:
        """The loop asks `iterator`, which is returned, for a batch: the step before is over."""
        self.waits = True
        self.asked = now = now_ns()
        if self.number != self.recorder.going or self.is_paused:
            return iterator
        steps = self.steps
        try:
            if steps.ready:
                steps.end(now)
                if steps.is_due(now):
                    now = self._write(now)
            steps.ask(now)
        except Exception as error:
            self._give_up(error)
        return iterator

    def answer(self, batch: object) -> object:
        """The loop has a batch, which is returned: the body of a step begins."""
        self.waits = False
        self.handed += 1
        ready = now_ns()
        if self.is_paused or not (self.is_new or self.number == self.recorder.going):
            return batch
        try:
            with unseen():
                if self.is_new:
                    self._learn(batch)
                if self.number == self.recorder.going:
                    batches = self.recorder.batches
                    self.steps.begin(ready, batches.count(batch), batches.measure(batch))
        except Exception as error:
            self._give_up(error)
        return batch

    def _learn(self, batch: object) -> None:
        """Learn what a batch is; set the clock back to before iter(loader)."""
        self.is_new = False
        if self.number != self.recorder.going:  # it failed: the loop skips what it cannot read
            self._begin(self.asked)
        self.steps.asked = self.asked - self.lead_ns
        self.lead_ns = 0
        self.recorder.batches.learn(batch)
        self.recorder.sampler.claim(sys._getframe(2))

    def _write(self, now: int) -> int:
        """Write the steps that are over; return when the next batch is asked for."""
        self.recorder.hand_over(now)
        if self.recorder.has_room() and now > self.beat_at:
            self.beat_at = now + BEAT_NS
            self.recorder.look(sys._getframe(2))
            self.beat(now)
        return now_ns()  # what this took is neither waiting nor body

    def pause(self) -> None:
        """End the step that goes on, and record nothing until `resume`."""
        if self.number == self.recorder.going:
            if self.steps.ready:
                self.steps.end(now_ns())
            self.steps.idle()
        self.is_paused = True

    def resume(self) -> None:
        """Record again: the time since `pause` is no part of the run."""
        if self.is_paused and self.number == self.recorder.going:
            self.recorder.hand_over()
            self.number = self.recorder.begin_pass(now_ns(), is_new=False)
        self.is_paused = False

    def end(self, how: str, error: BaseException | None = None) -> None:
        """End the pass; `error` is that of one which "failed"."""
        recorder = self.recorder
        if self.number == recorder.going and recorder.pid == os.getpid():
            with OwnErrors():
                recorder.end_pass(how, error)
                if how == "exhausted":
                    recorder.length = self.handed
                self.is_new = True  # it may have failed, and be asked again
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        if signal_of(error) is not None:
            raise error
        self.recorder.drop_pass()
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        self.end("left early")  # its iterator is dropped: a break, a return, an error in the body


class WatchedIterator:
    """An iterator over the batches of another, which times each step."""

    def __init__(self, current: Pass, iterator: Iterator[object]):
        self.current = current
        self.iterator = iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        self.current.ask()
        try:
            batch = next(self.iterator)
        except BaseException as error:
            how = "exhausted" if isinstance(error, StopIteration) else "failed"
            self.current.end(how, error)
            raise
        return self.current.answer(batch)


def iterate(recorder: Recorder, loader: Iterable[object], beat: Beat) -> Iterator[object]:
    """Return what hands on the batches of an iterable, and records the loop over them."""
    if not recorder.has_room():
        return iter(loader)
    asked = now_ns()
    try:
        with recorder.recorded(loader):
            iterator = iter(loader)  # draws a seed, starts workers
    except BaseException as error:
        with OwnErrors():
            recorder.begin_pass(asked)
            recorder.end_pass("failed", error)
        raise
    try:
        return WatchedIterator(Pass(recorder, now_ns() - asked, beat), iterator)
    except Exception as error:
        say(f"not recording: {type(error).__name__}: {error}")
        return iterator


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
