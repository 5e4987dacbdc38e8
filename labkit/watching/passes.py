"""One pass over a watched loader: hands its batches on, and stamps when."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, cast

from labkit.process.events import now_ns
from labkit.watching.batches import one_a_batch
from labkit.watching.log_words import Ending
from labkit.watching.messages import say

if TYPE_CHECKING:
    from typing_extensions import Self

    from labkit.watching.recorder import Recorder

BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second
MOST_STEPS = 512  # steps that wait to be written, so that memory does not grow with their rate

Beat = Callable[[int | None], None]
"""What is called twice a second with the time, ns, and with None when a pass is over."""


class StandsIn:
    """Answers for the `iterator` of a loader, whose class a script may ask for."""

    iterator: Iterator[object]

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class of the loader's own iterator."""
        return self.iterator.__class__

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(cast(Sized, self.iterator))

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "iterator"), name)


class Pass:
    """An iterator over the batches, which times each step.

    A pass ends once, by `end`: "exhausted" or "failed" when the loader says so, "left early" when
    the loop drops its iterator. `stop` ends the recording alone, as where a newer pass has begun.
    All other work waits until `_gathered`, when a hundred steps share the cost of cold caches.
    """

    def __init__(self, recorder: Recorder, iterator: Iterator[object], iter_ns: int, beat: Beat):
        """`iter_ns` is how long iter(loader) took."""
        self.recorder = recorder
        self.iterator = iterator
        self.beat = beat
        self.timer = recorder.step_timer()
        self.count = one_a_batch
        self.handed = 0  # batches, whether they are recorded or not
        self.on = True
        self.is_new = True  # until its first batch is here, or the first after an error
        self.is_paused = False
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.due = 0
        self.beat_at = 0
        recorder.begin_pass(self, now_ns() - iter_ns)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        now = now_ns()
        timer = self.timer
        if timer.ready:
            timer.end(now)
            if now > self.due or len(timer.steps) >= MOST_STEPS:
                now = self._gathered(now)
        timer.ask(now)
        batch = self.take_unstamped()
        ready = now_ns()
        try:
            if self.is_new:
                self._learn(batch)
            if self.on:
                timer.begin(ready, self.count(batch), self.recorder.batches.measure(batch))
            else:
                timer.begin(ready)
        except Exception as error:
            self._give_up(error)
        return batch

    def _learn(self, batch: object) -> None:
        """Learn how to count samples and bytes; set the clock back to before iter(loader)."""
        self.is_new = False
        if not self.on:  # the loader failed and was asked again: the loop skips what it cannot read
            self.recorder.begin_pass(self, self.timer.asked)
            self.on = True
        self.timer.asked -= self.lead_ns
        self.lead_ns = 0
        self.count = self.recorder.batches.counter(batch)
        self.recorder.probes.sampler.claim(sys._getframe(2))

    def _gathered(self, now: int) -> int:
        """Hand over what has gathered; return when the next batch is asked for."""
        self.due = now + GATHER_NS
        try:
            self.hand_over()
            if not self.on:
                return now
            if now > self.beat_at:
                self.beat_at = now + BEAT_NS
                self.recorder.probes.look(sys._getframe(2), self.recorder.steps.next)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def hand_over(self) -> None:
        """Give the recorder what has gathered; once stopped, forget it."""
        if self.on:
            self.timer.hand_over()
        else:
            self.timer.forget()

    def take_unstamped(self) -> object:
        """Return the next batch, without a stamp."""
        try:
            batch = next(self.iterator)
        except BaseException as error:
            self.end("exhausted" if isinstance(error, StopIteration) else "failed", error)
            raise
        self.handed += 1
        return batch

    def pause(self) -> None:
        """End the step that goes on, and record nothing until `resume`."""
        if self.timer.ready:
            self.timer.end(now_ns())
        self.timer.idle()
        self.is_paused = True

    def resume(self) -> None:
        """Record again: the time since `pause` is no part of the run."""
        if self.is_paused and self.on:
            self.hand_over()
            self.recorder.begin_epoch(now_ns(), counts=False)
        self.is_paused = False

    def stop(self) -> None:
        """Hand over what has gathered, and stop recording."""
        try:
            self.hand_over()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self.on = False
        self.timer.stop()

    def end(self, how: Ending, error: BaseException | None = None) -> None:
        """End the pass; `error` is that of one which "failed"."""
        if self.on:
            with contextlib.suppress(Exception):
                self.stop()
                self.recorder.end_pass(how, error)
                if how == "failed":
                    self.is_new = True
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self._let_go()
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self.end("left early")  # a break, a return or an exception in the body
