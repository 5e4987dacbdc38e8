"""When the device was busy: step by step, on the host's clock, without ever synchronising.

A step has four host stamps (ns): data asked for, data ready, copy issued, compute issued. On a
CPU the model runs between the last two, so they are also when the device was busy. On a GPU the
work runs later: pairs of device events say when, read back once they are done.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from labkit.bench.events import EventLog, now_ns
from labkit.bench.step_log import StepRing

# The thread's CPU clock is a system call: two readings cost a loop with cold caches 11 µs. So it
# is read in every step that takes a few milliseconds, and in one of eight shorter ones.
LONG_NS = 4_000_000
SHORT_STEPS = 8


class HostTimeline(StepRing):
    """Steps of a device that runs while the host waits: the CPU.

    Wall time of the compute that its thread did not get as CPU time means that someone else had
    the core: the loader's own workers, or another program.
    """

    cpu_ns, until_read = 0, 0

    def copying(self) -> None:
        """The copy to the device is about to be issued."""

    def copied(self) -> None:
        """It has been issued."""

    def computing(self) -> None:
        """Forward, backward and optimizer are about to be issued."""
        if not self.until_read:
            self.cpu_ns = time.thread_time_ns()

    def step(self, i: int, t: tuple[int, int, int, int], samples: int, loss: torch.Tensor) -> None:
        """Record step `i`; `t` holds its four stamps."""
        spent = 0  # not read
        if self.until_read:
            self.until_read -= 1
        else:
            spent = time.thread_time_ns() - self.cpu_ns
            self.until_read = SHORT_STEPS - 1 if spent < LONG_NS else 0
        self.add(i, t, samples, loss.item(), cpu_ns=spent)

    def finish(self) -> None:
        """Nothing is in flight on a CPU."""


class DeviceTimeline(StepRing):
    """Steps of a device that runs behind the host (CUDA, MPS): four events a step, no sync.

    Event times are relative; two anchors, at the start and the end of the run, tie them to the
    host's clock, and the difference between the two is reported as drift. Losses go to a small
    page-locked buffer on the device's own queue, since `loss.item()` would wait for the device.
    """

    LOSSES = 4096  # steps in flight at the most: far more than a launch queue holds (about 1000)

    def __init__(self, folder: Path, log: EventLog, device: torch.device):
        super().__init__(folder)
        self.log, self.device = log, device
        self.in_flight: deque = deque()
        self.losses = torch.zeros(self.LOSSES, pin_memory=device.type == "cuda")
        self.range = CudaRanges() if device.type == "cuda" else NoRanges()
        torch.accelerator.synchronize()
        self.anchor, self.anchor_ns = self.event(), now_ns()
        self.marks: list = []

    def event(self) -> torch.Event:
        """Record an event on the current stream (about 2 µs of host time)."""
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def copying(self) -> None:
        """Mark the start of the copy on the stream it is issued to."""
        self.range.push("copy")
        self.marks = [self.event()]

    def copied(self) -> None:
        """Mark the end of the copy, on the same stream."""
        self.marks.append(self.event())
        self.range.pop()

    def computing(self) -> None:
        """Mark the start of the compute on its own stream."""
        self.range.push("compute")
        self.marks.append(self.event())

    def step(self, i: int, t: tuple[int, int, int, int], samples: int, loss: torch.Tensor) -> None:
        """Keep step `i` until the device has finished it; write those it has."""
        slot = self.losses[i % self.LOSSES]
        slot.copy_(loss.detach(), non_blocking=True)  # queued behind the step, not waited for
        self.marks.append(self.event())
        self.range.pop()
        self.in_flight.append((i, t, samples, slot, self.marks))
        while self.in_flight and self.in_flight[0][-1][-1].query():
            self._write(*self.in_flight.popleft())

    def _write(self, i: int, t: tuple, samples: int, slot: torch.Tensor, marks: list) -> None:
        copy_and_busy = tuple(map(self._host_ns, marks))  # start and end of each
        self.add(i, t, samples, slot.item(), copy_and_busy)

    def _host_ns(self, event: torch.Event) -> int:
        return self.anchor_ns + int(self.anchor.elapsed_time(event) * 1e6)

    def finish(self) -> None:
        """Wait for the device (the run is over), write what was in flight, report the drift."""
        torch.accelerator.synchronize()
        end, end_ns = self.event(), now_ns()
        torch.accelerator.synchronize()
        while self.in_flight:
            self._write(*self.in_flight.popleft())
        self.log.write("drift", drift_us=(self._host_ns(end) - end_ns) / 1e3)


class CudaRanges:
    """NVTX ranges for Nsight Systems, as in `nsys profile --trace=cuda,nvtx`."""

    push, pop = staticmethod(torch.cuda.nvtx.range_push), staticmethod(torch.cuda.nvtx.range_pop)


class NoRanges:
    """Where there is no NVTX."""

    def push(self, name: str) -> None:
        """Begin nothing."""

    def pop(self) -> None:
        """End nothing."""


def make_timeline(log: EventLog, folder: Path, device: torch.device) -> Any:
    """Return the timeline that fits `device`, writing to the run in `folder`."""
    if device.type == "cpu":
        return HostTimeline(folder)
    return DeviceTimeline(folder, log, device)
