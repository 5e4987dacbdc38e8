"""What this process may use of its machine: cores and memory, as its container limits them.

A container sees all of its host's cores and memory, and is slowed down or killed beyond its quota.
The quotas are read where Linux has them: at the process's own control group and all groups above
(version 2, docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


@dataclass(frozen=True)
class Cores:
    """How many cores this process may use, of how many; `limit` is "quota", "affinity" or None."""

    count: int
    of: int
    limit: str | None


def cpu_cores() -> Cores:
    """Return the cores that the scheduler gives this process: the least of all limits.

    A quota of 1.5 cores counts as 2, one below a core as 1.
    """
    machine = os.cpu_count() or 1
    allowed = machine
    with contextlib.suppress(AttributeError, OSError):  # not on a Mac
        allowed = len(os.sched_getaffinity(0))
    quota = min((round(cores) for cores in _cpu_quotas()), default=allowed)
    if quota < allowed:
        return Cores(max(1, quota), machine, "quota")
    return Cores(allowed, machine, "affinity" if allowed < machine else None)


def ram_bytes() -> int:
    """Return the memory that this process and those beside it may use in all."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())])


def free_ram_bytes() -> int:
    """Return the memory that is free, here and before the first limit.

    What the system keeps of files and can drop at once is free.
    """
    import psutil

    left = (max(0, limit - used) for limit, used in _memory_limits())
    return min([psutil.virtual_memory().available, *left])


def _cpu_quotas() -> Iterator[float]:
    """Yield each limit on the CPU time of this process, in cores."""
    for group in _groups():
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()  # "max 100000": no limit
            yield int(quota) / int(period)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield each limit on this process's memory, and what is used of it, bytes."""
    for group in _groups():
        with contextlib.suppress(OSError, ValueError, KeyError):  # "max": no limit
            limit = int((group / "memory.max").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text())
            yield limit, used - int(stat["inactive_file"])


def _groups() -> list[Path]:
    """Return the folders of this process's control group and of all above it.

    A container may not see those of its host: then the topmost folder is its own group's.
    """
    own = PurePosixPath("/")
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = PurePosixPath(line.removeprefix("0::"))
    tree = ROOT / "sys/fs/cgroup"
    return [tree / group.relative_to("/") for group in (own, *own.parents)]
