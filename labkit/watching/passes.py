"""One pass over a watched loader: hands its batches on, and stamps when."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, cast

from labkit.bench.device_clock import Mark
from labkit.bench.loader_clocks import IDLE, SINCE, STATE
from labkit.process.events import now_ns

if TYPE_CHECKING:
    from typing_extensions import Self

    from labkit.watching.recorder import Recorder

BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second,
MOST_ROWS = 512  # or sooner where they are so short that memory would grow with their rate
WAITING, IN_BODY = 1, 2  # what the loop is busy with, in its progress file

Row = tuple[int, int, int, int, int, Mark | None, Mark | None]
"""A step: asked, ready, done (ns), samples, bytes, and its body's begin and end on a device."""
Beat = Callable[[int | None], None]
"""What is called twice a second with the time, ns, and with None when a pass is over."""


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr, flush=True)


def length_of(loader: object) -> int | None:
    """Return how many batches a loader has; None where it cannot tell."""
    with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
        return len(cast(Sized, loader))
    return None


def one_a_batch(_batch: object) -> int:
    """Count a batch whose samples are not known as one."""
    return 1


def unknown_bytes(_batch: object) -> int:
    """Return 0: of a batch whose bytes are not known."""
    return 0


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
    """An iterator over the batches, with a row of stamps for each step in a list.

    A pass ends once, by `end`: "exhausted" or "failed" when the loader says so, "left early" when
    the loop drops its iterator. `stop` ends the recording alone, as where a newer pass has begun.
    All other work waits until `_gathered`, when a hundred rows share the cost of cold caches.
    """

    def __init__(self, recorder: Recorder, iterator: Iterator[object], iter_ns: int, beat: Beat):
        """`iter_ns` is how long iter(loader) took."""
        self.recorder = recorder
        self.iterator = iterator
        self.fetch = iterator.__next__
        self.beat = beat
        self.on = True
        self.is_paused = False
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.rows: list[Row] = []
        self.due = 0
        self.beat_at = 0
        self.asked = 0
        self.samples = 0
        self.bytes = 0  # of the batch
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.count = self._first_count
        self.measure = recorder.measure
        self.start: Mark | None = None
        self.clock = recorder.clock
        self.words = recorder.words
        recorder.begin_pass(self, now_ns() - iter_ns)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        now = now_ns()
        if self.ready:
            self._end_step(now)
            if now > self.due or len(self.rows) >= MOST_ROWS:
                now = self._gathered(now)
        words = self.words
        words[SINCE] = now
        words[STATE] = WAITING
        batch = self.skip()
        ready = now_ns()
        words[SINCE] = ready
        words[STATE] = IN_BODY
        self.asked = now
        try:
            self.samples = self.count(batch)
            self.bytes = self.measure(batch)
            if self.clock is not None:
                self.start = self.clock.mark()
        except Exception as error:
            self._give_up(error)
        self.ready = ready
        return batch

    def _end_step(self, now: int) -> None:
        end = None if self.start is None or self.clock is None else self.clock.mark()
        row = (self.asked, self.ready, now, self.samples, self.bytes, self.start, end)
        self.rows.append(row)
        self.ready = 0

    def _first_count(self, batch: object) -> int:
        """Learn how to count samples and bytes; set the clock back to before iter(loader)."""
        if not self.on:  # the loader failed and was asked again: the loop skips what it cannot read
            self.recorder.begin_pass(self, self.asked)
            self.on = True
        self.asked -= self.lead_ns
        self.lead_ns = 0
        self.count = self.recorder.counter(batch)
        self.measure = self.recorder.measure
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
                self.recorder.growth.look(sys._getframe(2), self.recorder.sampler.places.loop)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def hand_over(self) -> None:
        """Give the recorder what has gathered; once stopped, forget it."""
        rows = self.rows
        self.rows = []
        if self.on:
            self.recorder.take(rows)

    def skip(self) -> object:
        """Return the next batch, without a stamp."""
        try:
            return self.fetch()
        except BaseException as error:
            self.end("exhausted" if isinstance(error, StopIteration) else "failed", error)
            raise

    def pause(self) -> None:
        """End the step that goes on, and record nothing until `resume`."""
        if self.ready:
            self._end_step(now_ns())
        self.words[STATE] = IDLE
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
        self.start = None
        self.clock = None
        self.words[STATE] = IDLE

    def end(self, how: str, error: BaseException | None = None) -> None:
        """End the pass: "exhausted", "left early", or "failed" with an `error`."""
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
        self.count = one_a_batch
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self.end("left early")  # a break, a return or an exception in the body
