"""When a GPU was busy, on the host's clock: pairs of events, and no synchronization."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from labkit.stamps.events import now_ns
from labkit.stamps.step_ring import FinishedStep

DRIFT = 2.5e-5  # the most that two quartz clocks part: 20 µs in a second, and what is rounded
PATIENCE_S = 1.0  # for the last steps, when the loop is over

AddStep = Callable[[FinishedStep], None]
"""Takes a step that is over: into the ring, or into the log itself."""


class Mark(NamedTuple):
    """An event, and the host's time before it was recorded."""

    event: torch.Event
    issued_ns: int


class EventPool:
    """Timing events of one device; once read they go back to `idle`: making one costs more."""

    def __init__(self, device: torch.device):
        self.device = device
        self.idle: list[torch.Event] = []
        self.alone = torch.accelerator.device_count() == 1

    def record(self) -> torch.Event:
        """Record an event on the device's current stream; return it."""
        event = self.idle.pop() if self.idle else torch.Event(self.device, enable_timing=True)
        if self.alone:  # to ask for the stream takes 1 µs
            event.record()
        else:
            event.record(torch.accelerator.current_stream(self.device))
        return event


class DeviceClock:
    """Turns a step's events into moments on the host's clock, once the device is through with it.

    The two clocks are tied without a synchronization: an event cannot have passed before it was
    recorded, nor after it was first seen to have passed. The first bound is tight whenever the
    device was idle, the second whenever the host looked just then. Between two such moments the
    tie is kept as it was: the clocks may part either way.
    """

    def __init__(self, device: torch.device, write: AddStep):
        self.events = EventPool(device)
        self.write = write
        self.in_flight: deque[tuple[FinishedStep, Sequence[Mark]]] = deque()
        self.first: torch.Event | None = None  # of the step that was written last
        self.first_ns = 0.0  # when it passed, on the host's clock, by the last tie
        self.least_ns = -math.inf  # when it passed at the earliest, however the clocks have parted

    def mark(self) -> Mark:
        """Record an event on the current stream."""
        before = now_ns()
        return Mark(self.events.record(), before)

    def add(self, step: FinishedStep, marks: Sequence[Mark]) -> None:
        """Keep a step, which has been issued, until the device is through with it.

        `marks` are the two ends of its copy and of its compute, or of its whole body alone.
        """
        self.in_flight.append((step, marks))

    def collect(self) -> None:
        """Write the steps that the device has finished."""
        while self.in_flight and self.in_flight[0][1][-1].event.query():
            seen_ns = now_ns()
            step, marks = self.in_flight.popleft()
            self._move_to(marks[0].event)
            self._tie(marks, seen_ns)
            start, *inner, end = (self.host_ns(mark.event) for mark in marks)
            device = (start, *(inner or (start, start)), end)  # a copy within the body is its own
            # the device is through: a loss that it had to compute is there too
            self.write(step._replace(device=device, loss=float(step.loss)))
            self.events.idle += [mark.event for mark in marks[1:]]

    def _move_to(self, first: torch.Event) -> None:
        """Make a step's first event the one that others are timed from."""
        if self.first is not None:
            # From the step before: over an hour the 32 bits of an elapsed time lose 0.25 ms
            moved_ns = self.first.elapsed_time(first) * 1e6
            self.first_ns += moved_ns
            self.least_ns += moved_ns * (1 - DRIFT)
            self.events.idle.append(self.first)
        self.first = first

    def _tie(self, marks: Sequence[Mark], seen_ns: int) -> None:
        """Tie the clocks by a step's marks, the last of which was seen to have passed."""
        after_ns = [self._after_ns(mark.event) for mark in marks]
        earliest_ns = max(
            mark.issued_ns - after for mark, after in zip(marks, after_ns, strict=True)
        )
        latest_ns = seen_ns - after_ns[-1]
        if earliest_ns > self.least_ns:
            self.first_ns = self.least_ns = earliest_ns
        self.first_ns = min(self.first_ns, latest_ns)
        self.least_ns = min(self.least_ns, latest_ns)

    def _after_ns(self, event: torch.Event) -> float:
        """Return the time from the step's first event to another one."""
        return self.first.elapsed_time(event) * 1e6 if self.first is not None else 0.0

    def host_ns(self, event: torch.Event) -> int:
        """Return when an event of the step being written passed, on the host's clock."""
        return round(self.first_ns + self._after_ns(event))

    def taken(self, event: torch.Event) -> int:
        """Return `host_ns` of an event that nobody reads again."""
        self.events.idle.append(event)
        return self.host_ns(event)

    def finish(self) -> None:
        """Give the device a moment for what is still in flight."""
        deadline = time.monotonic() + PATIENCE_S
        self.collect()
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(0.005)  # asked now and then, not synchronised
            self.collect()
