"""A record played back at the pace it was made: what reads a live run reads this.

Nothing is measured: the run it plays is `recorded`, and says so wherever it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.results.record import RecordError, read_record
from labkit.results.run import Run

LEAD_NS = 300_000_000  # before the first step: what came earlier is there at once


class Replay:
    """Stands where a live run has its process and the tail of its log.

    `read` returns the events that are due since the last call: steps at the time they ended,
    everything before the first step and after the last one at once.
    """

    def __init__(self, events: list[dict[str, Any]], speed: float, clock: Callable[[], float]):
        self.speed, self.clock, self.begun = speed, clock, None
        moments = _moments(events)
        order = sorted(range(len(events)), key=moments.__getitem__)  # stable
        self.events = [events[i] for i in order]
        self.due = [moments[i] for i in order]
        self.place = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the events whose time has come."""
        if self.begun is None:
            self.begun = self.clock()
        now = (self.clock() - self.begun) * 1e9 * self.speed
        start = self.place
        while self.place < len(self.events) and self.due[self.place] <= now:
            self.place += 1
        return self.events[start : self.place]

    def alive(self) -> bool:
        """Whether there is more to come."""
        return self.place < len(self.events)

    def stop(self) -> None:
        """Play no further: the run ends here as "stopped"."""
        if self.alive():
            self.events[self.place :] = [{"event": "end", "t_ns": 0, "stop": "asked", "code": None}]
            self.due[self.place :] = [0]

    def join(self) -> None:
        """There is no process to wait for."""


def replay(
    path: str | Path, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
) -> Run:
    """Return a Run that grows like the recorded one did, `speed` times as fast.

    Raises RecordError where `path` is no record of a run, ValueError on a bad speed.
    """
    if not isinstance(speed, (int, float)) or not 0 < speed <= 1e6:
        raise ValueError(f"speed={speed!r} is not allowed: use 1 for the real pace, 10 for faster.")
    events = read_record(path)
    if not any(event["event"] == "step" for event in events):
        raise RecordError(f"{path}: there are no steps in it to replay.")
    played = Replay(events, float(speed), clock)
    return Run(Path(path), process=played, recorded=True, tail=played)


def _moments(events: list[dict[str, Any]]) -> list[int]:
    """When each event is due, ns since the replay began."""
    steps = [event for event in events if event["event"] == "step"]
    zero = steps[0]["t"][0] - LEAD_NS
    last = max(_end(step) for step in steps) - zero
    seen, moments = False, []
    for event in events:
        if event["event"] == "step":
            seen = True
            moments.append(min(_end(event) - zero, last))
        elif event["event"] in ("telemetry", "epoch", "items") and seen:
            moments.append(min(max(int(event.get("t_ns", 0)) - zero, 0), last))
        else:
            moments.append(last if seen else 0)
    return moments


def _end(step: dict[str, Any]) -> int:
    return max(step["t"][3], step.get("busy", (0, 0))[1])
