"""The steps of a watched loop on their way to the log, and what they add up to."""

from __future__ import annotations

from labkit.process.events import EventLog
from labkit.process.step_ring import NO_DEVICE, line_of_step
from labkit.watching.device_clock import DeviceClock
from labkit.watching.tally import Tally
from labkit.watching.timed_step import TimedStep

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory


class StepLog:
    """Numbers steps, and writes each of them once its device is through with it."""

    def __init__(self, log: EventLog):
        self.log = log
        self.next = 0  # step
        self.warmup = 3  # steps that the sums leave out
        self.tally = Tally()
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.lines: list[str] = []

    def take(self, steps: list[TimedStep]) -> None:
        """Take in steps whose body is over."""
        clock = self.clock
        for number, step in enumerate(steps, self.next):
            if step.marks is None or clock is None:
                self.add(number, step)
            else:
                clock.add(number, step, step.marks)
        self.next += len(steps)
        if clock is not None:
            clock.collect()
        self.write()

    def add(self, number: int, step: TimedStep, busy: tuple[int, int] | None = None) -> None:
        """Account a step that is over on its device, which was `busy` from and until then."""
        asked, ready, done, samples, batch_bytes, _, loss = step
        stamps = (asked, ready, ready, done)
        if number == self.warmup:
            self.tally = Tally(self.tally.end)
        self.tally.add(stamps, samples, busy or stamps[2:])
        if number < KEEP_STEPS:
            device = (busy[0], busy[0], *busy) if busy else NO_DEVICE  # the copy is inside
            line = line_of_step(number, stamps, samples, loss, device, batch_bytes=batch_bytes)
            self.lines.append(line)

    def write(self) -> None:
        """Write what has gathered."""
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()
