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
from labkit.stamps.step_ring import (
    ASKED,
    BYTES,
    COPIED,
    DONE,
    FEW_SLOTS,
    FIRST,
    LAST,
    LOSS,
    READY,
    SAMPLES,
    WORDS,
    Drain,
    StepRing,
    step_in,
)

if TYPE_CHECKING:
    from labkit.stamps.timeline import DeviceClock, Mark

GATHER_NS = 100_000_000  # steps are written ten times a second
MOST_STEPS = FEW_SLOTS // 2  # that wait in the ring to be written


class LoopSteps:
    """The step that goes on: its stamps go into its slot of the ring, which outlives a kill.

    What is not in its slot is in `asked`, `ready` and `start`. On a GPU, a step that is over
    comes back to its slot when the device is through with it.
    """

    def __init__(self, folder: Path, log: EventLog):
        self.ring = StepRing(folder, FEW_SLOTS)
        self.drain = Drain(folder, log)
        self.busy_with = progress_words(folder, "loop")
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.next = 0  # the number of the step that goes on
        self.at = 0  # the word of the ring where the slot of the last step begins
        self.asked = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
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
        number = self.next
        words = self.ring.words
        at = self.at = number % FEW_SLOTS * WORDS
        words[at + FIRST] = number + 1
        words[at + ASKED] = self.asked
        words[at + READY] = words[at + COPIED] = self.ready = ready
        words[at + SAMPLES] = samples
        words[at + BYTES] = batch_bytes
        self.ring.reals[at + LOSS] = math.nan
        busy_with = self.busy_with
        busy_with[SINCE] = ready
        busy_with[STATE] = IN_BODY
        if self.clock is not None:
            self.start = self.clock.mark()

    def end(self, now: int) -> None:
        """The body is over, and issued to its device."""
        at = self.at
        words = self.ring.words
        self.next = number = self.next + 1
        self.ready = 0
        words[at + DONE] = now
        if self.start is None or self.clock is None:
            words[at + LAST] = number
        else:
            self.clock.add(step_in(self.ring.page, at), (self.start, self.clock.mark()))

    def is_due(self, now: int) -> bool:
        """Return whether it is time to write."""
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
