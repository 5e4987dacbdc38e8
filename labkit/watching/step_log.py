"""The steps of a watched loop on their way to the log, and what they add up to."""

from __future__ import annotations

import math

from labkit.process.events import EventLog
from labkit.process.step_ring import NO_DEVICE, FinishedStep
from labkit.watching.device_clock import DeviceClock
from labkit.watching.step_timer import TimedStep
from labkit.watching.tally import Tally

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory


class StepLog:
    """Numbers steps, and writes each of them once its device is through with it."""

    def __init__(self, log: EventLog):
        self.log = log
        self.next = 0  # step
        self.warmup = 3  # steps that the sums leave out
        self.tally = Tally()
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.losses: dict[int, float] = {}  # of steps, where a framework tells them
        self.bytes: dict[int, int] = {}  # of the batches of steps that wait for their device
        self.lines: list[str] = []

    def take(self, rows: list[TimedStep]) -> None:
        """Take in steps whose body is over."""
        clock = self.clock
        for number, row in enumerate(rows, self.next):
            asked, ready, done, samples, batch_bytes, start, end = row
            stamps = (asked, ready, ready, done)
            self.bytes[number] = batch_bytes
            if start is None or end is None or clock is None:
                self.add(number, stamps, samples)
            else:
                clock.add(number, stamps, samples, start, end)
        self.next += len(rows)
        if clock is not None:
            clock.collect()
        self.write()

    def add(self, number: int, stamps: tuple, samples: int, busy: tuple = ()) -> None:
        """Account a step that is over on its device, which was `busy` from and until then."""
        if number == self.warmup:
            self.tally = Tally(self.tally.end)
        self.tally.add(stamps, samples, busy or stamps[2:])
        loss = self.losses.pop(number, math.nan)
        batch_bytes = self.bytes.pop(number, 0)
        if number < KEEP_STEPS:
            device = (busy[0], busy[0], *busy) if busy else NO_DEVICE  # the copy is inside
            step = FinishedStep(number, stamps, samples, loss, device, batch_bytes=batch_bytes)
            self.lines.append(step.line())

    def write(self) -> None:
        """Write what has gathered."""
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()
