"""The steps of a watched loop on their way to the log, and what they add up to.

The log has the first steps and passes of a run of days, and the sums of all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from labkit.process.events import EventLog
from labkit.process.step_ring import NO_DEVICE, FinishedStep
from labkit.watching.device_clock import DeviceClock
from labkit.watching.tally import Tally
from labkit.watching.timed_step import TimedStep

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
KEEP_PASSES = 20_000  # whose steps are in the log, 6 MB without them: a pass may be of one batch
# The sums are written each time that there is so much more of the run, and where somebody asks
MORE, MORE_IF_ASKED = 1.1, 1.001


@dataclass
class LeftOut:
    """What the passes that the log has no events of add up to; the `pass` event of all of them."""

    n: int = 0  # of the first
    began: int = 0  # the first
    ended: int = 0  # the last
    spent: int = 0  # ns within them
    passes: int = 0
    trains: bool = False  # any of them

    def add(self, n: int, began_ns: int, ended_ns: int, trains: bool) -> None:
        """Add a pass that is over."""
        if not self.passes:
            self.n = n
            self.began = began_ns
        self.ended = ended_ns
        self.spent += ended_ns - began_ns
        self.passes += 1
        self.trains = self.trains or trains


class StepLog:
    """Numbers steps, and writes each of them once its device is through with it."""

    def __init__(self, log: EventLog):
        self.log = log
        self.next = 0  # step
        self.keep = KEEP_STEPS  # steps before this one are written
        self.warmup = 3  # steps that the sums leave out
        self.tally = Tally()
        self.samples = 0
        self.begun = 0  # passes, one that goes on after a pause once more
        self.left_out = LeftOut()
        self.summed = 0  # steps and passes, when the sums were written last
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        self.lines: list[str] = []

    def begin_pass(self) -> bool:
        """Return whether to write that a pass begins: after those in the log, once more."""
        self.begun += 1
        if not self.keeps_pass:
            self.keep = min(self.keep, self.next)
        return self.begun <= KEEP_PASSES + 1

    @property
    def keeps_pass(self) -> bool:
        """Whether the log has the pass that began last."""
        return self.begun <= KEEP_PASSES

    def end_pass(self, n: int, began_ns: int, ended_ns: int, trains: bool) -> bool:
        """Return whether to write a pass that is over; else it is in the sums."""
        if self.keeps_pass:
            return True
        self.left_out.add(n, began_ns, ended_ns, trains)
        self.write_sums(MORE)
        return False

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
        self.write_sums(MORE)

    def add(self, number: int, step: TimedStep, busy: tuple[int, int] | None = None) -> None:
        """Account a step that is over on its device, which was `busy` from and until then."""
        asked, ready, done, samples, batch_bytes, _, loss = step
        stamps = (asked, ready, ready, done)
        if number == self.warmup:
            self.tally = Tally(self.tally.end)
        self.tally.add(stamps, samples, busy or stamps[2:])
        self.samples += samples
        if number < self.keep:
            device = (busy[0], busy[0], *busy) if busy else NO_DEVICE  # the copy is inside
            over = FinishedStep(number, stamps, samples, loss, device, batch_bytes=batch_bytes)
            self.lines.append(over.line())

    def write(self) -> None:
        """Write what has gathered."""
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()

    def write_sums(self, more: float = 1.0) -> None:
        """Write what all steps and passes add up to, where the log does not have them all.

        Only where there are so many times `more` of them than when that was written last.
        """
        is_all = self.next <= self.keep and self.keeps_pass
        if is_all or self.next + self.begun < more * self.summed:
            return
        self.summed = self.next + self.begun
        tally = self.tally
        self.log.write(
            "sums",
            steps=self.next,
            samples=self.samples,
            wall=tally.wall,
            busy=tally.busy,
            wait=tally.wait,
        )
        if self.left_out.passes:
            self.log.write("pass", **asdict(self.left_out))
