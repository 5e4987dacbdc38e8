"""What the steps of a watched loop add up to: for its live line, and for a run of days."""

from __future__ import annotations


class Tally:
    """Sums over the steps so far, in ns and of bounded size."""

    def __init__(self, end: int | None = None):
        self.end = end  # of the step before, on the device
        self.steps = 0
        self.samples = 0
        self.wall = 0
        self.busy = 0
        self.wait = 0

    def add(self, stamps: tuple[int, ...], samples: int, busy: tuple[int, int]) -> None:
        """Add a step: its stamps, and when the device was busy."""
        asked, ready, *_ = stamps
        begin = asked if self.end is None else self.end
        start = max(busy[0], begin)
        end = max(busy[1], start)
        self.busy += end - start
        self.wait += min(ready - asked, start - begin)
        self.wall += end - begin
        self.steps += 1
        self.samples += samples
        self.end = end
