"""The step of a watched loop that goes on, and those before it on their way to the log."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.instruments.hangs import (
    IDLE,
    IN_BODY,
    SINCE,
    STATE,
    USUAL,
    WAITING,
    progress_words,
)
from labkit.stamps.events import EventLog
from labkit.stamps.step_ring import FEW_SLOTS, Drain, FinishedStep, StepRing

if TYPE_CHECKING:
    from labkit.stamps.timeline import DeviceClock, Mark

GATHER_NS = 100_000_000  # steps are written ten times a second
MOST_STEPS = FEW_SLOTS // 2  # that wait in the ring to be written


class LoopSteps:
    """The step that goes on; one that is over goes into the ring, which outlives a kill.

    On a GPU it does so when the device is through with it.
    """

    def __init__(self, folder: Path, log: EventLog):
        self.ring = StepRing(folder, FEW_SLOTS)
        self.drain = Drain(folder, log)
        self.busy_with = progress_words(folder, "loop")
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        # The step that goes on
        self.next = 0  # its number
        self.asked = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.batch = (0, 0)  # its samples and bytes
        self.start: Mark | None = None
        self.written_at = 0  # ns
        # Sums over the steps so far, for the live line and for how long a step usually takes
        self.samples = 0
        self.wall_ns = 0
        self.wait_ns = 0

    def ask(self, now: int) -> None:
        """The loop asks for a batch, and waits."""
        self.asked = now
        busy_with = self.busy_with
        busy_with[SINCE] = now
        busy_with[STATE] = WAITING

    def begin(self, ready: int, samples: int = 0, batch_bytes: int = 0) -> None:
        """The batch is here, and the body begins. There is no stamp of a copy: that is inside."""
        self.ready = ready
        self.batch = samples, batch_bytes
        busy_with = self.busy_with
        busy_with[SINCE] = ready
        busy_with[STATE] = IN_BODY
        if self.clock is not None:
            self.start = self.clock.mark()

    def end(self, now: int) -> bool:
        """The body is over, and issued to its device; return whether it is time to write."""
        ready = self.ready
        samples, size = self.batch
        stamps = (self.asked, ready, ready, now)
        step = FinishedStep(self.next, stamps, samples, math.nan, batch_bytes=size)
        self.next += 1
        self.ready = 0
        if self.start is None or self.clock is None:
            self.ring.add(step)
        else:
            self.clock.in_flight.append((step, (self.start, self.clock.mark())))
        return now - self.written_at > GATHER_NS or self.next - self.drain.next >= MOST_STEPS

    def write(self, now: int = 0) -> None:
        """Write the steps that are over, and that the device is through with."""
        self.written_at = now
        if self.clock is not None:
            self.clock.collect()
        for step in self.drain.drain():
            asked, ready, _, done = step.stamps
            self.samples += step.samples
            self.wall_ns += done - asked
            self.wait_ns += ready - asked
        self.busy_with[USUAL] = self.wall_ns // max(1, self.drain.next)

    def idle(self) -> None:
        """The loop is busy with nothing, and what it does is no part of a step."""
        self.ready = 0
        self.start = None
        self.busy_with[STATE] = IDLE

    def finish(self) -> None:
        """Give the device a moment for its last steps, and write them."""
        if self.clock is not None:
            self.clock.finish()
        self.write()
