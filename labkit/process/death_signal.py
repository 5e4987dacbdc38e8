"""Linux ends a process of a run with the one that it works for, whatever happens to that one."""

from __future__ import annotations

import ctypes
import os
import signal

from labkit.process.family import LINUX

PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def die_with(parent: int) -> None:
    """Have Linux SIGKILL this process when `parent` dies; elsewhere the supervisor does."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
