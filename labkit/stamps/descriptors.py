"""Descriptors of ours in a process whose code is somebody else's: it may close them, or fork."""

from __future__ import annotations

import contextlib
import os

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

MOST = 1024  # numbers: for one far above them the kernel makes its table larger


def moved_up(fd: int) -> int:
    """Return another descriptor of the same file, in place of `fd`: of a number that nobody uses.

    A program may count on the lowest that is free, or close 2 and have the next file be its stderr.
    """
    if fcntl is None or resource is None:
        return fd
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)
    with contextlib.suppress(OSError):  # as many are open as may be
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, most * 3 // 4))
        os.close(fd)
        return high
    return fd


class OwnDescriptor:
    """An open file for as long as its number is its own, in the process that opened it alone."""

    def __init__(self, fd: int):
        self.fd = fd
        self.pid = os.getpid()
        self.file = _identity(fd)

    def is_ours(self) -> bool:
        """Return whether it may be used: this is no fork, and nobody has closed it since."""
        if self.fd < 0 or self.pid != os.getpid():
            return False
        with contextlib.suppress(OSError):
            return _identity(self.fd) == self.file
        return False

    def close(self) -> None:
        """Let go of the file."""
        is_ours = self.is_ours()
        fd = self.fd
        self.fd = -1  # first: another thread may be writing
        if is_ours:
            os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
