"""How much of a step's compute the CPU spent on the model's own thread, the CPU being the device.

Wall time that the thread did not get means that someone else had the core: the loader's own
workers, or another program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from labkit.bench.events import EventLog

# This clock is a system call: two readings cost a loop with cold caches 11 µs. So it is read in
# every step that takes a few milliseconds, and in one of eight shorter ones.
LONG_NS = 4_000_000
SKIP = 7
BATCH = 512  # steps to an event


class OwnTime:
    """Thread CPU time of every call to `compute`, appended to the log in batches."""

    def __init__(self, log: EventLog):
        self.log = log
        self.spent_ns: list[int | None] = []  # None where it was not read
        self.skip = 0

    def around(self, compute: Callable) -> Callable:
        """Return `compute`, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.skip:
                self.skip -= 1
                self.spent_ns.append(None)
                return compute(*args, **kwargs)
            start = time.thread_time_ns()
            result = compute(*args, **kwargs)
            spent = time.thread_time_ns() - start
            self.spent_ns.append(spent)
            self.skip = SKIP if spent < LONG_NS else 0
            if len(self.spent_ns) >= BATCH:
                self.flush()
            return result

        return timed

    def flush(self) -> None:
        """Write what has gathered."""
        if self.spent_ns:
            self.log.write("own_time", ns=self.spent_ns)
        self.spent_ns = []
