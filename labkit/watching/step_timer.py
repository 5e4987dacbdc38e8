"""Stamps the steps of a watched loop, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from labkit.bench.loader_progress import IDLE, IN_BODY, SINCE, STATE, WAITING
from labkit.watching.device_clock import DeviceClock
from labkit.watching.timed_step import Mark, TimedStep

TakeSteps = Callable[[list[TimedStep]], DeviceClock | None]
"""Records steps whose body is over; returns the clock of the GPU that they ran on, if any."""


class StepTimer:
    """The step that goes on, and those before it until they are handed over."""

    def __init__(self, words: memoryview[int], take: TakeSteps, clock: DeviceClock | None = None):
        """`words` say what the loop is busy with; `take` is given the steps that have gathered."""
        self.words = words
        self.take = take
        self.clock = clock  # of a GPU; known only when the first body has run
        self.steps: list[TimedStep] = []
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

    def holds(self, samples: int, batch_bytes: int) -> None:
        """The batch of the step that goes on holds so much, which was not known at its begin."""
        self.samples = samples
        self.batch_bytes = batch_bytes

    def end(self, now: int) -> None:
        """The body is over, and issued to its device."""
        marks = None
        if self.start is not None and self.clock is not None:
            marks = (self.start, self.clock.mark())
        step = TimedStep(self.asked, self.ready, now, self.samples, self.batch_bytes, marks)
        self.steps.append(step)
        self.ready = 0

    def restart(self, now: int) -> None:
        """The next step begins now: what lay before belongs to none."""
        self.asked = now

    def extend(self, now: int, on_device: bool = False, loss: float | None = None) -> None:
        """What has followed the last step until now is a part of it; `on_device`, there as well.

        `loss` is that of the step, where it is known now.
        """
        self.asked = now
        if not self.steps:
            return
        step = self.steps[-1]
        marks = step.marks
        if on_device and marks is not None and self.clock is not None:
            marks = (marks[0], self.clock.mark())
        loss = step.loss if loss is None else float(loss)
        self.steps[-1] = step._replace(done=now, marks=marks, loss=loss)

    def hand_over(self) -> None:
        """Hand over the steps that have gathered."""
        steps = self.steps
        self.steps = []
        self.clock = self.take(steps)

    def forget(self) -> None:
        """Forget the steps that have gathered."""
        self.steps.clear()

    def idle(self) -> None:
        """Say that the loop is busy with nothing."""
        self.words[STATE] = IDLE

    def stop(self) -> None:
        """Mark nothing more on the device: what follows is not recorded."""
        self.start = None
        self.clock = None
        self.idle()
