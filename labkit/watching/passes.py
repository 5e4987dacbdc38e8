"""One pass over a watched loader: hands its batches on, and stamps when."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from labkit.bench.loader_clocks import IDLE, SINCE, STATE
from labkit.process.events import now_ns

if TYPE_CHECKING:
    from labkit.watching.recorder import Recorder

BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second,
MOST_ROWS = 512  # or sooner where they are so short that memory would grow with their rate
WAITING, IN_BODY = 1, 2  # what the loop is busy with, in its progress file


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr)


def length_of(batches: object) -> int:
    """Return len(batches); raises TypeError where it has none, as `len` does."""
    if not isinstance(batches, Sized):
        raise TypeError(f"object of type {type(batches).__name__!r} has no len()")
    return len(batches)


class Pass:
    """An iterator over the batches, with a row of stamps for each step in a list.

    All other work waits until `_gathered`, when a hundred rows share the cost of cold caches.
    """

    def __init__(self, recorder: Recorder, iterator: Iterator[Any], iter_ns: int, beat: Callable):
        """`iter_ns` is how long iter(loader) took; `beat(now)` is called twice a second."""
        self.recorder = recorder
        self.fetch = iterator.__next__
        self.beat = beat
        self.on = True
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.rows: list[tuple] = []
        self.due = 0
        self.beat_at = 0
        self.asked = 0
        self.samples = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.count = self._first_count
        self.start = None
        self.clock = recorder.clock
        self.words = recorder.words
        recorder.begin_pass(self, now_ns() - iter_ns)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        now = now_ns()
        if self.ready:
            end = None if self.start is None or self.clock is None else self.clock.mark()
            self.rows.append((self.asked, self.ready, now, self.samples, self.start, end))
            self.ready = 0
            if now > self.due or len(self.rows) >= MOST_ROWS:
                now = self._gathered(now)
        words = self.words
        words[SINCE] = now
        words[STATE] = WAITING
        try:
            batch = self.fetch()
        except BaseException as error:
            self._end("exhausted" if isinstance(error, StopIteration) else "failed", error)
            raise
        ready = now_ns()
        words[SINCE] = ready
        words[STATE] = IN_BODY
        self.asked = now
        try:
            self.samples = self.count(batch)
            if self.clock is not None:
                self.start = self.clock.mark()
        except Exception as error:
            self._give_up(error)
        self.ready = ready
        return batch

    def _first_count(self, batch: Any) -> int:
        """Learn how to count samples; set the clock back to before iter(loader)."""
        if not self.on:  # the loader failed and was asked again: the loop skips what it cannot read
            self.recorder.begin_pass(self, self.asked)
            self.on = True
        self.asked -= self.lead_ns
        self.lead_ns = 0
        self.count = self.recorder.counter(batch)
        self.recorder.sampler.claim(sys._getframe(2))
        return self.count(batch)

    def _gathered(self, now: int) -> int:
        """Hand over what has gathered; return when the next batch is asked for."""
        self.due = now + GATHER_NS
        try:
            self.hand_over()
            if not self.on:
                return now
            self.clock = self.recorder.clock  # known only when the first body has run
            if now > self.beat_at:
                self.beat_at = now + BEAT_NS
                self.recorder.growth.look(sys._getframe(2), self.recorder.sampler.loop)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def hand_over(self) -> None:
        """Give the recorder what has gathered; once stopped, forget it."""
        rows, self.rows = self.rows, []
        if self.on:
            self.recorder.take(rows)

    def pause(self) -> None:
        """End the step that goes on, and record nothing until `resume`."""
        if self.ready:
            end = None if self.start is None or self.clock is None else self.clock.mark()
            self.rows.append((self.asked, self.ready, now_ns(), self.samples, self.start, end))
            self.ready = 0
        self.words[STATE] = IDLE

    def skip(self) -> Any:
        """Return the next batch while paused: without a stamp."""
        try:
            return self.fetch()
        except BaseException as error:
            self._end("exhausted" if isinstance(error, StopIteration) else "failed", error)
            raise

    def resume(self) -> None:
        """Record again: the time since `pause` is no part of the run."""
        if self.on:
            self.hand_over()
            self.recorder.begin_epoch(now_ns(), counts=False)

    def finish(self) -> None:
        """End the pass as if the loader had come to its end."""
        self._end("exhausted")

    def stop(self) -> None:
        """Hand over what has gathered, and stop recording."""
        try:
            self.hand_over()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self.on = False
        self.start = None
        self.clock = None
        self.words[STATE] = IDLE

    def _end(self, how: str, error: BaseException | None = None) -> None:
        if self.on:
            with contextlib.suppress(Exception):
                self.stop()
                self.recorder.end_pass(how, error)
                if how == "failed":
                    self.count = self._first_count
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self._let_go()
        self.count = _no_samples
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self._end("left early")  # a break, a return or an exception in the body


def _no_samples(_batch: Any) -> int:
    return 0
