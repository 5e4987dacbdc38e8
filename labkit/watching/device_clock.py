"""When a GPU was busy with somebody else's loop, on the host's clock, without a synchronization."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.process.events import now_ns
from labkit.watching.timed_step import Mark, TimedStep

if TYPE_CHECKING:
    import torch

    from labkit.bench.timeline import EventPool

DRIFT = 2e-5  # the most that two quartz clocks part: 20 µs in a second
PATIENCE_S = 1.0  # for the last steps, when the loop is over

Write = Callable[[int, TimedStep, tuple[int, int]], None]
"""Takes a finished step: its number, the step, and when the device was busy, ns."""


class DeviceClock:
    """Turns pairs of events into busy intervals on the host's clock, once the device is through.

    The two clocks are tied without a synchronization: an event cannot have passed before it was
    recorded, nor after it was first seen to have passed. The first bound is tight whenever the
    device was idle, the second whenever the host looked just then. Between two such moments the
    tie is kept as it was: the clocks may part either way.
    """

    def __init__(self, events: EventPool, write: Write):
        self.events = events
        self.write = write
        # Steps that are issued: number, step, and the marks at both ends of its body
        self.in_flight: deque[tuple[int, TimedStep, tuple[Mark, Mark]]] = deque()
        self.last: torch.Event | None = None  # the event at `place_ns` on the device's clock
        self.place_ns = 0.0
        self.zero_ns = 0.0  # the host's time at place 0, by the last tie
        self.least_ns = -math.inf  # what it is at least by now, however the clocks have parted

    def mark(self) -> Mark:
        """Record an event on the current stream."""
        before = now_ns()
        return Mark(self.events.record(), before)

    def add(self, number: int, step: TimedStep, marks: tuple[Mark, Mark]) -> None:
        """Keep a step, whose body has been issued, until the device is through with it."""
        self.in_flight.append((number, step, marks))

    def collect(self) -> None:
        """Write the steps that the device has finished."""
        while self.in_flight:
            number, step, (first, last) = self.in_flight[0]
            if not last.event.query():
                break
            seen = now_ns()
            self.in_flight.popleft()
            start = self._place(first, seen)
            end = self._place(last, seen)
            busy = (int(self.zero_ns + start), int(self.zero_ns + end))
            self.write(number, step, busy)

    def _place(self, mark: Mark, seen_ns: int) -> float:
        """Return when an event passed, ns on the device's clock; tie that to the host's."""
        moved = 0.0
        if self.last is not None:
            # From the event before: over an hour the 32 bits of an elapsed time lose 0.25 ms.
            moved = self.last.elapsed_time(mark.event) * 1e6
            self.events.idle.append(self.last)
        self.last = mark.event
        self.place_ns += moved
        earliest = mark.issued_ns - self.place_ns
        latest = seen_ns - self.place_ns
        self.least_ns -= DRIFT * moved
        if earliest > self.least_ns:
            self.zero_ns = self.least_ns = earliest
        self.zero_ns = min(self.zero_ns, latest)
        self.least_ns = min(self.least_ns, latest)
        return self.place_ns

    def finish(self) -> None:
        """Give the device a moment for what is still in flight."""
        deadline = time.monotonic() + PATIENCE_S
        self.collect()
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(0.005)  # asked now and then, not synchronised
            self.collect()
