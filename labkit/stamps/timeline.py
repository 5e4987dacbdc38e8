"""The stamps of each step: the host's, and those of a GPU from its own events.

A step has four host stamps (ns): data asked for, data ready, copy issued, compute issued. On a CPU
the model runs between the last two. On a GPU the work runs later: pairs of device events say when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from labkit.stamps.device_clock import AddStep, DeviceClock, Mark
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.step_ring import FinishedStep, StepRing

# The thread's CPU clock is a system call: two readings cost a loop with cold caches 11 to 26 µs.
# So it is read in every step that takes a few milliseconds, and in one of many shorter ones.
LONG_NS = 4_000_000
SHORT_STEPS = 32
# On MPS events may come in reverse order or never pass (github.com/pytorch/pytorch/issues/196395),
# and to read one submits the queue and waits for it; read twice, it waits for ever
NO_EVENTS = "events of MPS cannot be read without waiting for the device"


class Step(NamedTuple):
    """A step whose compute the host has issued, as the loop hands it to its timeline."""

    number: int
    asked: int  # when the host asked for data, ns
    ready: int  # when the data were there, ns
    copied: int  # when their copy had been issued, ns
    samples: int
    loss: torch.Tensor


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
        self.clock.add(FinishedStep(step.number, stamps, step.samples, loss), self.marks)
        self.clock.collect()
        return done

    def finish(self) -> None:
        """Write what was in flight."""
        torch.accelerator.synchronize(self.device)
        self.clock.finish()


def make_timeline(
    log: EventLog, folder: Path, device: torch.device
) -> HostTimeline | DeviceTimeline:
    """Return the timeline that fits `device`, writing to the run in `folder`."""
    if device.type == "cpu":
        return HostTimeline(StepRing(folder).add)
    if device.type == "cuda":
        return DeviceTimeline(StepRing(folder).add, device)
    log.write("clock", why=NO_EVENTS)
    return WaitingTimeline(StepRing(folder).add, device)
