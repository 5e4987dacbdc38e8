"""The stamps of each step: the host's, and those of a GPU from its own events.

A step has four host stamps (ns): data asked for, data ready, copy issued, compute issued. On a CPU
the model runs between the last two. On a GPU the work runs later: pairs of device events say when,
on the host's clock, without a synchronization.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.step_ring import FinishedStep

# The thread's CPU clock is a system call: two readings cost a loop with cold caches 11 to 26 µs.
# So it is read in every step that takes a few milliseconds, and in one of many shorter ones.
LONG_NS = 4_000_000
SHORT_STEPS = 32
# On MPS events may come in reverse order or never pass (github.com/pytorch/pytorch/issues/196395),
# and to read one submits the queue and waits for it; read twice, it waits for ever
NO_EVENTS = "events of MPS cannot be read without waiting for the device"
DRIFT = 2.5e-5  # the most that two quartz clocks part: 20 µs in a second, and what is rounded
PATIENCE_S = 1.0  # for the last steps, when the loop is over

AddStep = Callable[[FinishedStep], None]
"""Takes a step that is over: into the ring, or into the log itself."""


class Mark(NamedTuple):
    """An event, and the host's time before it was recorded."""

    event: torch.Event
    issued_ns: int


class DeviceClock:
    """Turns a step's events into moments on the host's clock, once the device is through with it.

    The two clocks are tied without a synchronization: an event cannot have passed before it was
    recorded, nor after it was first seen to have passed. The first bound is tight whenever the
    device was idle, the second whenever the host looked just then. Between two such moments the
    tie is kept as it was: the clocks may part either way.
    """

    def __init__(self, device: torch.device, write: AddStep):
        self.device = device
        self.write = write
        self.idle: list[torch.Event] = []  # events to be recorded again: making one costs more
        self.alone = torch.accelerator.device_count() == 1
        # Steps that have been issued, until the device is through with them, each with the two ends
        # of its copy and of its compute, or of its whole body alone
        self.in_flight: deque[tuple[FinishedStep, Sequence[Mark]]] = deque()
        self.first: torch.Event | None = None  # of the step that was written last
        self.first_ns = 0.0  # when it passed, on the host's clock, by the last tie
        self.least_ns = -math.inf  # when it passed at the earliest, however the clocks have parted

    def record(self) -> torch.Event:
        """Record an event on the device's current stream; return it."""
        event = self.idle.pop() if self.idle else torch.Event(self.device, enable_timing=True)
        # to ask for the stream takes 1 µs
        event.record(*() if self.alone else (torch.accelerator.current_stream(self.device),))
        return event

    def mark(self) -> Mark:
        """Record an event on the current stream."""
        before = now_ns()
        return Mark(self.record(), before)

    def collect(self) -> None:
        """Write the steps that the device has finished."""
        while self.in_flight and self.in_flight[0][1][-1].event.query():
            seen_ns = now_ns()
            step, marks = self.in_flight.popleft()
            self._tie(marks, seen_ns)
            start, *inner, end = (self.host_ns(mark.event) for mark in marks)
            device = (start, *(inner or (start, start)), end)  # a copy within the body is its own
            # the device is through: a loss that it had to compute is there too
            self.write(step._replace(device=device, loss=float(step.loss)))
            self.idle += [mark.event for mark in marks[1:]]

    def _tie(self, marks: Sequence[Mark], seen_ns: int) -> None:
        """Tie the clocks by a step's marks, the last of which was seen to have passed.

        Others are timed from its first event, and that from the one of the step before: over an
        hour the 32 bits of an elapsed time lose 0.25 ms.
        """
        if self.first is not None:
            moved_ns = self._after_ns(marks[0].event)
            self.first_ns += moved_ns
            self.least_ns += moved_ns * (1 - DRIFT)
            self.idle.append(self.first)
        self.first = marks[0].event
        earliest_ns = max(mark.issued_ns - self._after_ns(mark.event) for mark in marks)
        latest_ns = seen_ns - self._after_ns(marks[-1].event)
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

    def last_host_ns(self, event: torch.Event) -> int:
        """Return `host_ns` of an event that nobody reads again."""
        self.idle.append(event)
        return self.host_ns(event)

    def finish(self) -> None:
        """Give the device a moment for what is still in flight."""
        deadline = time.monotonic() + PATIENCE_S
        self.collect()
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(0.005)  # asked now and then, not synchronised
            self.collect()


class Step(NamedTuple):
    """A step whose compute the host has issued, as the loop gives it to its timeline."""

    number: int
    asked: int  # when the host asked for data, ns
    ready: int  # when the data were there, ns
    copied: int  # when their copy had been issued, ns
    samples: int
    loss: torch.Tensor


class HostTimeline:
    """Steps of a device that runs while the host waits: the CPU."""

    # A copy to the CPU is over when it is issued. Just the clock: a method costs cold caches 4 µs
    copying = staticmethod(now_ns)
    copied = staticmethod(now_ns)

    def __init__(self, add: AddStep):
        """Give each step to `add`."""
        self.add = add
        self.cpu_ns = 0
        self.skipped = 0  # steps to come in which the thread's CPU clock is not read
        self.computing: Callable[[], object] = self.read_cpu

    def read_cpu(self) -> None:
        """Note the thread's CPU time; this is `computing` in a step that records its own."""
        self.cpu_ns = time.thread_time_ns()

    def step(self, step: Step) -> int:
        """Record a step, over now; return its end, in ns."""
        done = now_ns()
        spent = 0  # not read
        if self.skipped:
            self.skipped -= 1
        else:
            spent = time.thread_time_ns() - self.cpu_ns
            self.skipped = SHORT_STEPS - 1 if spent < LONG_NS else 0
        self.computing = now_ns if self.skipped else self.read_cpu
        stamps = (step.asked, step.ready, step.copied, done)
        loss = step.loss.item()
        self.add(FinishedStep(step.number, stamps, step.samples, loss, cpu_ns=spent))
        return done

    def finish(self) -> None:
        """Nothing is in flight on a CPU."""


class WaitingTimeline(HostTimeline):
    """Steps of a device without events to trust (MPS): the host waits for each copy and step."""

    def __init__(self, add: AddStep, device: torch.device):
        super().__init__(add)
        self.device = device

    def copied(self) -> int:
        """Wait for the copy; return the host's time."""
        torch.accelerator.synchronize(self.device)
        return now_ns()

    def step(self, step: Step) -> int:
        """Wait for the step, and record it."""
        torch.accelerator.synchronize(self.device)
        return super().step(step)


class DeviceTimeline:
    """Steps of a device that runs behind the host (CUDA): four events a step, none waited for.

    Losses go to page-locked memory on the device's queue: `loss.item()` would wait.
    """

    LOSSES = 4096  # steps in flight at the most: far more than a launch queue holds (about 1000)

    def __init__(self, add: AddStep, device: torch.device):
        self.device = device
        self.clock = DeviceClock(device, add)
        self.marks: list[Mark] = []
        self.losses = list(torch.zeros(self.LOSSES, pin_memory=True))
        torch.accelerator.synchronize(device)  # so that the first event passes at once

    def copying(self) -> int:
        """Mark the start of the copy on the stream it is issued to; return the host's time."""
        self.marks = [self.clock.mark()]
        return self.marks[0].issued_ns

    def copied(self) -> int:
        """Mark the end of the copy, on the same stream; return the host's time."""
        self.marks.append(self.clock.mark())
        return now_ns()

    def computing(self) -> None:
        """Mark the start of the compute on its own stream."""
        self.marks.append(self.clock.mark())

    def step(self, step: Step) -> int:
        """Keep a step, issued by now (ns, returned), until the device is through with it."""
        done = now_ns()
        loss = self.losses[step.number % self.LOSSES]
        loss.copy_(step.loss.detach(), non_blocking=True)  # queued behind the step, not waited for
        self.marks.append(self.clock.mark())  # where it has passed, the loss is there too
        stamps = (step.asked, step.ready, step.copied, done)
        issued = FinishedStep(step.number, stamps, step.samples, loss)
        self.clock.in_flight.append((issued, self.marks))
        self.clock.collect()
        return done

    def finish(self) -> None:
        """Write what was in flight."""
        torch.accelerator.synchronize(self.device)
        self.clock.finish()


def make_timeline(
    log: EventLog, add: AddStep, device: torch.device
) -> HostTimeline | DeviceTimeline:
    """Return the timeline that fits `device`, and gives each step to `add`."""
    if device.type == "cpu":
        return HostTimeline(add)
    if device.type == "cuda":
        return DeviceTimeline(add, device)
    log.write("clock", why=NO_EVENTS)
    return WaitingTimeline(add, device)
