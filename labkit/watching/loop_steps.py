"""The steps of a watched loop: stamped, timed by its GPU, summed up and written to the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.instruments.loader_progress import IDLE, IN_BODY, SINCE, STATE, USUAL, WAITING
from labkit.stamps.events import EventLog
from labkit.stamps.step_ring import NO_DEVICE, FinishedStep

if TYPE_CHECKING:
    from labkit.stamps.device_clock import DeviceClock, Mark


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
    """The step that goes on, and those before it until they are written, ten times a second."""

    def __init__(self, log: EventLog, words: memoryview[int] | list[int]):
        """`words` say what the loop is busy with."""
        self.log = log
        self.words = words
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.next = 0  # the number of the step that goes on
        self.gathered: list[tuple[FinishedStep, Sequence[Mark]]] = []
        self.tally = Tally()
        self.lines: list[str] = []
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
        self.gathered.append((step, marks))
        self.next += 1
        self.ready = 0

    def extend(self, now: int, on_device: bool = False, loss: float | None = None) -> None:
        """What has followed the last step until now is a part of it; `on_device`, there as well.

        `loss` is that of the step, where it is known now.
        """
        self.asked = now
        if not self.gathered:
            return
        step, marks = self.gathered[-1]
        if on_device and marks and self.clock is not None:
            marks = (marks[0], self.clock.mark())
        step = step if loss is None else step._replace(loss=loss)
        self.gathered[-1] = (step._replace(stamps=(*step.stamps[:3], now)), marks)

    def write(self) -> None:
        """Write the steps that have gathered, and that the device is through with."""
        for step, marks in self.gathered:
            if marks and self.clock is not None:
                self.clock.add(step, marks)
            else:
                self.add(step)
        self.gathered.clear()
        if self.clock is not None:
            self.clock.collect()
        self.write_lines()

    def add(self, step: FinishedStep) -> None:
        """Take in a step that is over on its device."""
        self.tally.add(step)
        self.lines.append(step.line())

    def write_lines(self) -> None:
        """Write the steps that are over."""
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()
            self.words[USUAL] = self.tally.wall // self.next

    def idle(self) -> None:
        """The loop is busy with nothing, and what it does is no part of a step."""
        self.ready = 0
        self.start = None
        self.words[STATE] = IDLE
