"""One pass over a watched loader: hands its batches on, and stamps when.

This is all of labkit that a step of somebody else's loop runs: a few stamps, and a row in a list.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from labkit.bench import stack
from labkit.bench.watch import Recorder, say
from labkit.process.events import now_ns

BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second,
MOST_ROWS = 512  # or sooner where they are so short that memory would grow with their rate


class Pass:
    """One pass over the loader: hands its batches on, and stamps when.

    A step costs one row in a list; what is more waits until `_gathered`, ten times a second, when
    a hundred rows share the cost of caches that the loop's own work has emptied.
    """

    __slots__ = (
        "recorder", "fetch", "beat", "rows", "due", "beat_at", "asked", "ready", "lead_ns", "count",
        "samples", "start", "clock", "on", "__weakref__",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, iterator: Any, iter_ns: int, beat: Callable):
        """`iter_ns` is what iter(loader) took; `beat(now)` is called now and then."""
        self.recorder, self.fetch, self.beat, self.on = recorder, iterator.__next__, beat, True
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.rows: list[tuple] = []
        self.due = self.beat_at = self.asked = self.samples = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.count, self.start, self.clock = self._first_count, None, recorder.clock
        recorder.begin_pass(self)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        now = now_ns()
        if self.ready:
            end = None if self.start is None else self.clock.mark()
            self.rows.append((self.asked, self.ready, now, self.samples, self.start, end))
            self.ready = 0
            if now > self.due or len(self.rows) >= MOST_ROWS:
                now = self._gathered(now)
        try:
            batch = self.fetch()
        except StopIteration:
            self._end("exhausted")
            raise
        except BaseException as error:
            self._end("failed", error)
            raise
        ready = now_ns()
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
        """Learn how to count samples, and set the clock back to before iter(loader)."""
        if not self.on:  # the loader failed and was asked again: the loop skips what it cannot read
            self.recorder.begin_pass(self)
            self.on = True
        self.asked, self.lead_ns = self.asked - self.lead_ns, 0
        self.count = self.recorder.counter(batch)
        if self.recorder.sampler.loop is None:
            self.recorder.sampler.loop = stack.users_code(sys._getframe(2))
        return self.count(batch)

    def _gathered(self, now: int) -> int:
        """Hand over what has gathered; return when the next batch is asked for."""
        rows, self.rows, self.due = self.rows, [], now + GATHER_NS
        if not self.on:
            return now
        try:
            self.recorder.take(rows)
            self.clock = self.recorder.clock  # known only when the first body has run
            if now > self.beat_at:
                self.beat_at = now + BEAT_NS
                self.recorder.growth.look(sys._getframe(2), self.recorder.sampler.loop)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def stop(self) -> None:
        """Hand over what has gathered, and stop recording."""
        rows, self.rows, on, self.on = self.rows, [], self.on, False
        self.start = self.clock = None
        if on:
            self.recorder.take(rows)

    def _end(self, how: str, error: BaseException | None = None) -> None:
        if self.on:
            with contextlib.suppress(Exception):
                self.stop()
                self.recorder.end_pass(how, error)
                if error is not None:
                    self.count = self._first_count
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self.on, self.start, self.clock, self.count = False, None, None, lambda _batch: 0
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self._end("left early")  # a break, a return or an exception in the body
