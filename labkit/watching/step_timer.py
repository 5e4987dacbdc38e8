"""Stamps the steps of a watched loop, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.bench.loader_progress import IDLE, IN_BODY, SINCE, STATE, WAITING
from labkit.watching.device_clock import Mark

if TYPE_CHECKING:
    from labkit.watching.recorder import Recorder

TimedStep = tuple[int, int, int, int, int, Mark | None, Mark | None]
"""A step: asked, ready, done (ns), samples, bytes, and its body's begin and end on a device."""


class StepTimer:
    """The step that goes on, and a row of stamps for each one before it."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.words = recorder.probes.words
        self.clock = recorder.steps.clock  # of a GPU; known only when the first body has run
        self.rows: list[TimedStep] = []
        self.asked = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.samples = 0
        self.bytes = 0  # of the batch
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
        self.bytes = batch_bytes
        self.words[SINCE] = ready
        self.words[STATE] = IN_BODY
        if self.clock is not None:
            self.start = self.clock.mark()

    def end(self, now: int) -> None:
        """The body is over, and issued to its device."""
        end = None if self.start is None or self.clock is None else self.clock.mark()
        row = (self.asked, self.ready, now, self.samples, self.bytes, self.start, end)
        self.rows.append(row)
        self.ready = 0

    def extend(self, now: int, on_device: bool = False) -> None:
        """What has followed the last step until now is a part of it; `on_device`, there as well."""
        self.asked = now
        if not self.rows:
            return
        asked, ready, _, samples, batch_bytes, start, end = self.rows[-1]
        if on_device and end is not None and self.clock is not None:
            end = self.clock.mark()
        self.rows[-1] = (asked, ready, now, samples, batch_bytes, start, end)

    def hand_over(self) -> None:
        """Give the recorder what has gathered."""
        rows = self.rows
        self.rows = []
        self.recorder.take(rows)
        self.clock = self.recorder.steps.clock

    def idle(self) -> None:
        """Say that the loop is busy with nothing."""
        self.words[STATE] = IDLE

    def stop(self) -> None:
        """Mark nothing more on the device: what follows is not recorded."""
        self.start = None
        self.clock = None
        self.idle()
