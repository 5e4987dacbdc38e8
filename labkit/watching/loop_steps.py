"""The steps of a watched loop: stamped, timed by its GPU, summed up and written to the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.instruments.hangs import IDLE, IN_BODY, SINCE, STATE, USUAL, WAITING
from labkit.stamps.events import EventLog
from labkit.stamps.step_ring import FEW_SLOTS, NO_DEVICE, Drain, FinishedStep, StepRing

if TYPE_CHECKING:
    from labkit.stamps.timeline import DeviceClock, Mark

GATHER_NS = 100_000_000  # steps are written ten times a second
MOST_STEPS = FEW_SLOTS // 2  # that wait in the ring to be written


@dataclass
class Tally:
    """Sums over the steps so far, ns: for the live line, and for how long a step usually takes."""

    samples: int = 0
    wall: int = 0
    busy: int = 0
    wait: int = 0
    end: int | None = None  # of the step before, on the device

    def add(self, step: FinishedStep) -> None:
        """Add a step that is over."""
        asked, ready, copied, done = step.stamps
        begin = asked if self.end is None else self.end
        start, end = (copied, done) if step.device is NO_DEVICE else step.device[2:]
        start = max(start, begin)
        self.end = max(end, start)
        self.busy += self.end - start
        self.wait += min(ready - asked, start - begin)
        self.wall += self.end - begin
        self.samples += step.samples


class LoopSteps:
    """The step that goes on. Those before it are in the ring, which a kill leaves as it is.

    On a GPU a step goes there when the device is through with it.
    """

    def __init__(self, folder: Path, log: EventLog, words: memoryview[int] | list[int]):
        """`words` say what the loop is busy with."""
        self.ring = StepRing(folder, FEW_SLOTS)
        self.drain = Drain(folder, log)
        self.words = words
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.next = 0  # the number of the step that goes on
        # The last one, and its marks, which is not in the ring yet
        self.over: tuple[FinishedStep, Sequence[Mark]] | None = None
        self.tally = Tally()
        self.written_at = 0  # ns
        self.asked = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.samples = 0
        self.batch_bytes = 0
        self.start: Mark | None = None

    def ask(self, now: int) -> None:
        """The loop asks for a batch, and waits."""
        self.asked = now
        self.words[SINCE] = now
        self.words[STATE] = WAITING

    def begin(self, ready: int, samples: int = 0, batch_bytes: int = 0) -> None:
        """The batch is here, and the body begins."""
        if self.over is not None:
            self.keep()
        self.ready = ready
        self.samples = samples
        self.batch_bytes = batch_bytes
        self.words[SINCE] = ready
        self.words[STATE] = IN_BODY
        if self.clock is not None:
            self.start = self.clock.mark()

    def end(self, now: int) -> None:
        """The body is over, and issued to its device. Its stamps have no copy: that is inside."""
        marks = () if self.start is None or self.clock is None else (self.start, self.clock.mark())
        stamps = (self.asked, self.ready, self.ready, now)
        step = FinishedStep(self.next, stamps, self.samples, math.nan, batch_bytes=self.batch_bytes)
        self.over = step, marks
        self.next += 1
        self.ready = 0

    def extend(self, now: int, on_device: bool = False, loss: float | None = None) -> None:
        """What has followed the last step until now is a part of it; `on_device`, there as well.

        `loss` is that of the step, where it is known now.
        """
        self.asked = now
        if self.over is None:
            return
        step, marks = self.over
        if on_device and marks and self.clock is not None:
            marks = (marks[0], self.clock.mark())
        step = step if loss is None else step._replace(loss=loss)
        self.over = step._replace(stamps=(*step.stamps[:3], now)), marks

    def keep(self) -> None:
        """Put the last step into the ring, or leave it to the device's clock to do so."""
        if self.over is None:
            return
        step, marks = self.over
        self.over = None
        if marks and self.clock is not None:
            self.clock.add(step, marks)
        else:
            self.ring.add(step)

    def is_due(self, now: int) -> bool:
        """Return whether it is time to write."""
        return now - self.written_at > GATHER_NS or self.next - self.drain.next >= MOST_STEPS

    def write(self, now: int = 0) -> None:
        """Write the steps that are over, and that the device is through with."""
        self.written_at = now
        self.keep()
        if self.clock is not None:
            self.clock.collect()
        steps = self.drain.drain()
        for step in steps:
            self.tally.add(step)
        if steps:
            self.words[USUAL] = self.tally.wall // (steps[-1].number + 1)

    def idle(self) -> None:
        """The loop is busy with nothing, and what it does is no part of a step."""
        self.ready = 0
        self.start = None
        self.words[STATE] = IDLE

    def finish(self) -> None:
        """Give the device a moment for its last steps, and write them."""
        self.keep()
        if self.clock is not None:
            self.clock.finish()
        self.write()
