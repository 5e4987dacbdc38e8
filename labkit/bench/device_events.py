"""Events in a device's queue, used again and again: the one place where labkit records them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class EventPool:
    """Timing events of one device. Making one costs more than recording it, so they are kept."""

    def __init__(self, device: torch.device):
        self.device, self.idle = device, []
        self.alone = torch.accelerator.device_count() == 1

    def record(self) -> Any:
        """Record an event on the device's current stream; return it."""
        event = self.idle.pop() if self.idle else torch.Event(self.device, enable_timing=True)
        if self.alone:  # to ask for the stream takes 1 µs
            event.record()
        else:
            event.record(torch.accelerator.current_stream(self.device))
        return event

    def give_back(self, events: Iterable[Any]) -> None:
        """Take events that have been read."""
        self.idle.extend(events)
