"""What this process may use of its machine: cores and memory, as its container limits them.

A container sees all of its host's cores and memory, and is slowed down or killed beyond its quota.
The quotas are read where Linux has them, under /sys/fs/cgroup: at the process's own control group
and all groups above (docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
GIB = 2**30


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
    quotas = [int(quota) / int(period) for quota, period in _limits("cpu.max")]
    quota = min((math.floor(cores + 0.5) for cores in quotas), default=allowed)
    if quota < allowed:
        return Cores(max(1, quota), machine, "quota")
    return Cores(allowed, machine, "affinity" if allowed < machine else None)


def ram_bytes() -> int:
    """Return the memory that this process and those beside it may use in all."""
    import psutil

    return min([psutil.virtual_memory().total, *(int(most) for (most,) in _limits("memory.max"))])


def _limits(file: str) -> Iterator[list[str]]:
    """Yield the words of a file of each control group that this process is in, where it limits.

    A container's own may be where the whole tree's root is elsewhere: that one is asked too.
    """
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            group = PurePosixPath(line.rpartition(":")[2].lstrip("/"))
            for each in (group, *group.parents):
                with contextlib.suppress(OSError):
                    words = (ROOT / "sys/fs/cgroup" / each / file).read_text().split()
                    if words[0] != "max":
                        yield words
