"""What a loader's process and a loop's thread are measured with: clocks and threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from labkit.stamps.events import now_ns

try:
    import fcntl
    import resource
except ImportError:  # Windows, where there is no /proc
    fcntl = resource = None

MOST_NUMBER = 1024  # of a descriptor


class ProcFile:
    """A file of Linux's /proc that is read again and again; it has nothing elsewhere.

    It is read in a process whose code is somebody else's, which may fork, count on the lowest
    descriptor that is free, or close ours and have another file of that number.
    """

    def __init__(self, path: str):
        self.fd = -1
        self.pid = os.getpid()
        with contextlib.suppress(OSError):
            self.fd = moved_up(os.open(path, os.O_RDONLY))
            self.file = os.fstat(self.fd)

    def _is_ours(self) -> bool:
        return (
            self.fd >= 0
            and self.pid == os.getpid()
            and os.path.samestat(os.fstat(self.fd), self.file)
        )

    def words(self, size: int) -> list[bytes]:
        """Return the words of its first `size` bytes; [] where there is none."""
        with contextlib.suppress(OSError):  # a kernel or a sandbox that refuses it later
            if self._is_ours():
                return os.pread(self.fd, size, 0).split()
        return []

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(OSError):
            is_ours = self._is_ours()
            fd, self.fd = self.fd, -1  # first: another thread may be reading
            if is_ours:
                os.close(fd)


def moved_up(fd: int) -> int:
    """Return another descriptor of the same file, in place of `fd`: of a number that nobody uses.

    For one far above `MOST_NUMBER` the kernel would make its table larger.
    """
    if fcntl is None or resource is None:
        return fd
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MOST_NUMBER)
    with contextlib.suppress(OSError):  # as many are open as may be
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, most * 3 // 4))
        os.close(fd)
        return high
    return fd


def thread_times(pid: int | str) -> Iterator[tuple[Path, int, int]]:
    """Yield each thread of a process (its folder), its CPU time and time in line, ns (Linux)."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError):  # it has just ended
            spent_ns, in_line_ns, _ = (task / "schedstat").read_text().split()
            yield task, int(spent_ns), int(in_line_ns)


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


class TimeInLine(ProcFile):
    """For how long the thread that asks has stood in line for a core. To read it takes 1 µs."""

    def __init__(self):
        super().__init__("/proc/thread-self/schedstat")

    def now(self) -> int:
        """Return it by now, ns; 0 where the system does not tell."""
        words = self.words(64)
        return int(words[1]) if words else 0


class ThreadState(ProcFile):
    """What the thread that opens it does, as the scheduler sees it."""

    def __init__(self):
        super().__init__("/proc/thread-self/stat")

    def is_runnable(self) -> bool:
        """Return whether it computes or waits for a core; False where the system does not tell."""
        told = b" ".join(self.words(512))  # its number, its name in brackets, its state
        return told.rpartition(b") ")[2].startswith(b"R")


class ThreadClock:
    """This thread's time, from lap to lap. A lap takes 1.7 µs."""

    def __init__(self):
        self.in_line = TimeInLine()
        self.tells = self.in_line.fd >= 0  # else the line looks like waiting
        self.before = self._read()

    def _read(self) -> tuple[int, int, int, int]:
        waits = 0  # for which the thread gave its core up
        if resource is not None and self.tells:
            waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time_ns(), self.in_line.now(), waits, now_ns()

    def lap(self) -> tuple[int, int, int]:
        """Return the CPU time, the waiting and the standing in line for a core since, ns."""
        before, self.before = self.before, self._read()
        cpu, in_line, waits, wall = (
            new - old for old, new in zip(before, self.before, strict=True)
        )
        if self.tells and not waits:
            in_line = max(0, wall - cpu)
        return cpu, max(0, wall - cpu - in_line), in_line
