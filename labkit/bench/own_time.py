"""How much of a step's compute the CPU spent on the model's own thread, the CPU being the device.

Wall time that the thread did not get means that someone else had the core: the loader's own
workers, or another program. Two clock readings of 0.25 µs a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from labkit.bench.events import EventLog

BATCH = 512  # steps to an event


class OwnTime:
    """Thread CPU time of every call to `compute`, appended to the log in batches."""

    def __init__(self, log: EventLog):
        self.log, self.spent_ns = log, []

    def around(self, compute: Callable) -> Callable:
        """Return `compute`, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            result = compute(*args, **kwargs)
            self.spent_ns.append(time.thread_time_ns() - start)
            if len(self.spent_ns) >= BATCH:
                self.flush()
            return result

        return timed

    def flush(self) -> None:
        """Write what has gathered."""
        if self.spent_ns:
            self.log.write("own_time", ns=self.spent_ns)
        self.spent_ns = []
