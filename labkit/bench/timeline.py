"""When the device was busy: step by step, on the host's clock, with a wait for it now and then.

A step has four host stamps (ns): data asked for, data ready, copy issued, compute issued. On a CPU
the model runs between the last two. On a GPU the work runs later: pairs of device events say when.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from labkit.process.events import EventLog, now_ns
from labkit.process.step_ring import FinishedStep, StepRing

# The thread's CPU clock is a system call: two readings cost a loop with cold caches 11 to 26 µs.
# So it is read in every step that takes a few milliseconds, and in one of many shorter ones.
LONG_NS = 4_000_000
SHORT_STEPS = 32
# Between two waits for the device to compare clocks: quartz clocks part by up to 20 µs in a second,
# and what the device idles for in a wait, less than a millisecond, is below 0.02 % of the time
ANCHOR_S = 5.0
# On MPS events may come in reverse order or never pass (github.com/pytorch/pytorch/issues/196395),
# and to read one submits the queue and waits for it; read twice, it waits for ever
NO_EVENTS = "events of MPS cannot be read without waiting for the device"


class EventPool:
    """Timing events of one device; once read they go back to `idle`: making one costs more."""

    def __init__(self, device: torch.device):
        self.device = device
        self.idle: list[torch.Event] = []
        self.alone = torch.accelerator.device_count() == 1

    def record(self) -> torch.Event:
        """Record an event on the device's current stream; return it."""
        event = self.idle.pop() if self.idle else torch.Event(self.device, enable_timing=True)
        if self.alone:  # to ask for the stream takes 1 µs
            event.record()
        else:
            event.record(torch.accelerator.current_stream(self.device))
        return event


class Step(NamedTuple):
    """A step whose compute the host has issued, as the loop hands it to its timeline."""

    number: int
    asked: int  # when the host asked for data, ns
    ready: int  # when the data were there, ns
    copied: int  # when their copy had been issued, ns
    samples: int
    loss: torch.Tensor


AddStep = Callable[[FinishedStep], None]
"""Takes a step that is over: into the ring, or into the log itself."""


class HostTimeline:
    """Steps of a device that runs while the host waits: the CPU."""

    cpu_ns = 0
    until_read = 0  # steps in which the thread's CPU clock is not read
    # A copy to the CPU is over when it is issued. Just the clock: a method costs cold caches 4 µs
    copying = staticmethod(now_ns)
    copied = staticmethod(now_ns)

    def __init__(self, add: AddStep, long_ns: int = LONG_NS):
        """Hand each step to `add`; a compute of `long_ns` has its CPU time read every time."""
        self.add = add
        self.long_ns = long_ns
        self.computing: Callable[[], object] = self.read_cpu

    def read_cpu(self) -> None:
        """Note the thread's CPU time; this is `computing` in a step that records its own."""
        self.cpu_ns = time.thread_time_ns()

    def step(self, step: Step) -> int:
        """Record a step, over now; return its end, in ns."""
        done = now_ns()
        spent = 0  # not read
        if self.until_read:
            self.until_read -= 1
            if not self.until_read:
                self.computing = self.read_cpu
        else:
            spent = time.thread_time_ns() - self.cpu_ns
            if spent < self.long_ns:
                self.until_read = SHORT_STEPS - 1
                self.computing = now_ns
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
        self.computing = now_ns  # the thread's CPU time is not that of the compute
        self.until_read = 2**62

    def copied(self) -> int:
        """Wait for the copy; return the host's time."""
        torch.accelerator.synchronize(self.device)
        return now_ns()

    def step(self, step: Step) -> int:
        """Wait for the step, and record it."""
        torch.accelerator.synchronize(self.device)
        return super().step(step)


class Issued(NamedTuple):
    """A step that the device is not through with."""

    step: Step  # its loss is page-locked, and there once the last mark has passed
    done: int  # when the host had issued it, ns
    marks: list[torch.Event]  # start and end of the copy, start and end of the compute


class DeviceTimeline:
    """Steps of a device that runs behind the host (CUDA): four events a step, none waited for.

    Event times have 32 bits: each step is placed by the time from the step before to its own first
    event. An anchor at the start and every `ANCHOR_S` ties them to the host's clock, since the two
    clocks part; what they had parted by the end is the drift. Losses go to page-locked memory on
    the device's queue: `loss.item()` would wait.
    """

    LOSSES = 4096  # steps in flight at the most: far more than a launch queue holds (about 1000)

    def __init__(self, add: AddStep, log: EventLog, device: torch.device):
        self.add = add
        self.log = log
        self.device = device
        self.events = EventPool(device)
        self.in_flight: deque[Issued] = deque()
        self.marks: list[torch.Event] = []
        self.losses = list(torch.zeros(self.LOSSES, pin_memory=True))
        # Ranges for `nsys profile`, where this torch was built with them
        has_ranges = hasattr(torch._C, "_nvtx")
        self.push: Callable[[str], object] = torch.cuda.nvtx.range_push if has_ranges else _no_range
        self.pop: Callable[[], object] = torch.cuda.nvtx.range_pop if has_ranges else _no_range
        self.first: torch.Event  # of the step that was written last; or the anchor, after it
        self.first_ns: int  # when it was, on the host's clock
        torch.accelerator.synchronize(device)
        self._anchor()

    def copying(self) -> int:
        """Mark the start of the copy on the stream it is issued to; return the host's time."""
        now = now_ns()
        self.push("copy")
        self.marks = [self.events.record()]
        return now

    def copied(self) -> int:
        """Mark the end of the copy, on the same stream; return the host's time."""
        self.marks.append(self.events.record())
        self.pop()
        return now_ns()

    def computing(self) -> None:
        """Mark the start of the compute on its own stream."""
        self.push("compute")
        self.marks.append(self.events.record())

    def step(self, step: Step) -> int:
        """Keep a step, issued by now (ns, returned), until the device is through with it."""
        done = now_ns()
        slot = self.losses[step.number % self.LOSSES]
        slot.copy_(step.loss.detach(), non_blocking=True)  # queued behind the step, not waited for
        self.marks.append(self.events.record())  # where it has passed, the loss is there too
        self.pop()
        self.in_flight.append(Issued(step._replace(loss=slot), done, self.marks))
        while self.in_flight and self.in_flight[0].marks[-1].query():
            self._write_next()
        if done - self.anchored_ns > 1e9 * ANCHOR_S:
            self._catch_up()
            self.events.idle.append(self.first)
            self._anchor()
        return done

    def _anchor(self) -> None:
        """Record an event on an idle device: it passes at once, at a time that the host knows."""
        self.first = self.events.record()
        self.first_ns = self.anchored_ns = now_ns()
        torch.accelerator.synchronize(self.device)  # a driver for Windows may hold the event back

    def _catch_up(self) -> None:
        """Wait for the device, and write what was in flight."""
        torch.accelerator.synchronize(self.device)
        while self.in_flight:
            self._write_next()

    def _write_next(self) -> None:
        step, done, marks = self.in_flight.popleft()
        self._move_to(marks[0])
        device = tuple(map(self.host_ns, marks))
        stamps = (step.asked, step.ready, step.copied, done)
        self.add(FinishedStep(step.number, stamps, step.samples, step.loss.item(), device))
        self.events.idle += marks[1:]

    def _move_to(self, first: torch.Event) -> None:
        """Make a step's first event the one that the others are timed from."""
        self.first_ns = self.host_ns(first)
        self.events.idle.append(self.first)
        self.first = first

    def host_ns(self, event: torch.Event) -> int:
        """Return an event of the step being written as ns on the host's clock."""
        return self.first_ns + round(self.first.elapsed_time(event) * 1e6)

    def taken(self, event: torch.Event) -> int:
        """Return `host_ns` of an event that nobody reads again."""
        self.events.idle.append(event)
        return self.host_ns(event)

    def finish(self) -> None:
        """Write what was in flight, and how far the clocks have parted since the last anchor."""
        self._catch_up()
        last = self.first
        last_ns = self.first_ns
        self._anchor()
        by_device_ns = last.elapsed_time(self.first) * 1e6
        self.log.write("drift", drift_us=(last_ns + by_device_ns - self.first_ns) / 1e3)


def _no_range(*_name: str) -> None:
    """Begin or end no range: there is no profiler for them."""


def make_timeline(
    log: EventLog, folder: Path, device: torch.device
) -> HostTimeline | DeviceTimeline:
    """Return the timeline that fits `device`, writing to the run in `folder`."""
    if device.type == "cpu":
        return HostTimeline(StepRing(folder).add)
    if device.type == "cuda":
        return DeviceTimeline(StepRing(folder).add, log, device)
    log.write("clock", why=NO_EVENTS)
    return WaitingTimeline(StepRing(folder).add, device)
