"""What this process may use of its machine: cores and memory, as its container limits them.

A container sees all of its host's cores and memory, and is slowed down or killed beyond its quota.
The quotas are read where Linux has them, under /sys/fs/cgroup: at the process's own control group
and all groups above, of version 2 (docs.kernel.org/admin-guide/cgroup-v2.html) and version 1 (the
same site's admin-guide/cgroup-v1/memory.html and scheduler/sched-bwc.html).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
GIB = 2**30
MEMORY = (  # files of version 2 and 1: the limit, what is used, and what of that can be dropped
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


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
    quota = min((math.floor(cores + 0.5) for cores in _cpu_quotas()), default=allowed)
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
    for group in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()  # "max 100000": no limit
            else:
                quota = (group / "cpu.cfs_quota_us").read_text()  # -1: no limit
                period = (group / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield each limit on this process's memory, and what is used of it, bytes."""
    for group, (limit, used, dropped) in itertools.product(_groups("memory"), MEMORY):
        with contextlib.suppress(OSError, ValueError, KeyError):  # "max": no limit
            most = int((group / limit).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield most, int((group / used).read_text()) - int(stat[dropped])


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in.

    A container's own may be where the whole tree's root is elsewhere: that one is asked too.
    """
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):  # version 2 has no name
                group = PurePosixPath(path.lstrip("/"))
                for each in (group, *group.parents):
                    yield ROOT / "sys/fs/cgroup" / controllers / each
