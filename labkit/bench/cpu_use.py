"""How many cores processes use, from one look to the next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import psutil

LEAST_S = 1e-9  # between two looks: nothing is divided by zero


class CpuUse:
    """The cores that each of some processes used since the last look at them."""

    def __init__(self):
        self.spent_s: dict[psutil.Process, float] = {}
        self.looked_at = time.monotonic()
        self.elapsed_s = 0.0  # between the last two looks

    def look(self, processes: Iterable[psutil.Process]) -> dict[psutil.Process, float]:
        """Return {process: cores}; those that have just ended are not in it.

        One that is new counts with all its CPU time so far.
        """
        spent_s: dict[psutil.Process, float] = {}
        for process in processes:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent_s[process] = times.user + times.system
        now = time.monotonic()
        self.elapsed_s = max(LEAST_S, now - self.looked_at)
        cores = {}
        for process, seconds in spent_s.items():
            cores[process] = (seconds - self.spent_s.get(process, 0.0)) / self.elapsed_s
        self.spent_s = spent_s
        self.looked_at = now
        return cores
