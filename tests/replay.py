"""A recorded run as a live one: it grows at the pace it was made at, for what follows a run."""

import bisect
import time

from labkit.results.record import Tail, read_record
from labkit.results.run import Run

LEAD_NS = 300_000_000  # before the first step: what came earlier is there at once


class Playback(Tail):
    """Stands in for the process of a live run and the tail of its log: gives events when due."""

    def __init__(self, events, speed):
        self.speed = speed
        self.begun = None  # when the first events were read
        steps = [event for event in events if event["event"] == "step"]
        self.begin_ns = steps[0]["t"][0] - LEAD_NS
        self.last_ns = max(map(end_ns, steps))  # what came behind it is due with it
        self.left = sorted(events, key=self.due_ns)

    def alive(self):
        return bool(self.left)

    def join(self):
        """There is no process to wait for."""

    def read(self):
        """Return the events whose time has come since the last call."""
        if self.begun is None:
            self.begun = time.monotonic()
        now_ns = self.begin_ns + (time.monotonic() - self.begun) * 1e9 * self.speed
        count = bisect.bisect_right(self.left, now_ns, key=self.due_ns)
        found = self.left[:count]
        self.left = self.left[count:]
        return found

    def due_ns(self, event):
        """Return when an event is due, ns on the record's clock."""
        return min(max(end_ns(event), self.begin_ns), self.last_ns)

    def stop(self):
        """Play no further: the run ends here as "stopped"."""
        if self.left:
            self.left = [{"event": "end", "t_ns": 0, "stop": "asked", "code": None}]


def end_ns(event):
    if event["event"] == "step":
        return max(event["t"][3], (event.get("busy") or (0, 0))[1])
    return int(event.get("t_ns") or 0)


def play(path, speed):
    """Return a Run that grows like the recorded one did, `speed` times as fast."""
    played = Playback(read_record(path), speed)
    return Run(path, process=played, recorded=True, tail=played)
