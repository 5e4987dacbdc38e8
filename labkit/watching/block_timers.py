"""What a block of steps takes on a device that runs behind the host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from labkit.process.events import now_ns
from labkit.watching.device_in_use import device_in_use

if TYPE_CHECKING:
    import torch


class Queue:
    """The clock of a GPU, whose queue takes in many steps before the first of them runs.

    A step is over for the host when it is issued. So a block is timed from event to event, each
    of which passes after the steps before it.
    """

    def __init__(self, device: torch.device):
        from labkit.bench.timeline import EventPool  # the loop has imported torch by now

        self.events = EventPool(device)
        self.begin()

    def begin(self) -> None:
        """Begin a block, with the next step that is issued."""
        self.first = self.events.record()
        self.latest = self.first

    def keep_up(self) -> None:
        """Hold the host until the device has reached the last call of this."""
        self.latest.synchronize()
        self.latest = self.events.record()

    def end(self) -> int:
        """Wait for the device; return what the block took there, ns."""
        last = self.events.record()
        last.synchronize()
        return round(self.first.elapsed_time(last) * 1e6)


class Waiting:
    """The clock of a device that has no events to trust: the host waits at a block's ends."""

    def __init__(self, device: torch.device):
        self.device = device
        self.begin()

    def _now(self) -> int:
        sys.modules["torch"].accelerator.synchronize(self.device)
        return now_ns()

    def begin(self) -> None:
        """Begin a block, with the next step that is issued."""
        self.began = self._now()

    def keep_up(self) -> None:
        """Hold the host until the device has done what it was given."""
        self._now()

    def end(self) -> int:
        """Wait for the device; return what the block took, ns."""
        return self._now() - self.began


BlockTimer = Queue | Waiting


def timer_in_use() -> BlockTimer | None:
    """Return the clock of the GPU that this process computes on; None on a CPU, or without torch.

    There a step is over when the host says so.
    """
    torch = sys.modules.get("torch")
    device = None if torch is None else device_in_use(torch)
    if device is None or device.type == "cpu":
        return None
    return Queue(device) if device.type == "cuda" else Waiting(device)
