"""What the processes and threads of a loader and its loop are measured with."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import psutil

from labkit.stamps.events import now_ns

try:
    import resource
except ImportError:  # Windows, where there is no /proc
    resource = None


def in_line_ns(thread: str | Path) -> int:
    """Return for how long a thread, a folder in /proc, has stood in line for a core, ns.

    It is 0 where the system does not tell. The file is open only while it is read, as a program may
    close or count the descriptors that it has.
    """
    with contextlib.suppress(OSError, IndexError), open(f"{thread}/schedstat", "rb", 0) as file:
        return int(file.read(64).split()[1])
    return 0


def library_threads() -> int:
    """Return how many threads that Python has not started compute beside the one that asks.

    That is, they have had a quarter of its CPU time or more.
    """
    python = {thread.native_id for thread in threading.enumerate()}
    least_s = max(time.thread_time() / 4, 0.01)  # what the system counts in
    threads = psutil.Process().threads()
    return sum(
        each.id not in python and each.user_time + each.system_time >= least_s for each in threads
    )


class ThreadClock:
    """The time of a thread of the bench, from lap to lap. A lap takes 1.7 µs."""

    def __init__(self):
        self.file = -1  # without one, standing in line looks like waiting
        with contextlib.suppress(OSError):  # Linux only
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.before = self._read()

    def _read(self) -> tuple[int, int, int, int]:
        in_line = waits = 0  # the second: for which the thread gave its core up
        if resource is not None and self.file >= 0:
            in_line = int(os.pread(self.file, 64, 0).split()[1])
            waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time_ns(), in_line, waits, now_ns()

    def lap(self) -> tuple[int, int, int]:
        """Return the CPU time, the waiting and the standing in line for a core since, ns."""
        before, self.before = self.before, self._read()
        cpu, in_line, waits, wall = (
            new - old for old, new in zip(before, self.before, strict=True)
        )
        if self.file >= 0 and not waits:
            in_line = max(0, wall - cpu)
        return cpu, max(0, wall - cpu - in_line), in_line
