"""Ties between processes: nobody outlives the one it works for."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def die_with(parent: int) -> None:
    """Ask Linux to SIGKILL this process when `parent` (a pid) dies; elsewhere the supervisor must.

    Exits at once if the parent is already gone.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def worker_dies_with_bench(_worker_id: int) -> None:
    """DataLoader's `worker_init_fn`: tie a loader worker to the bench that forked it."""
    die_with(multiprocessing.parent_process().pid)
