"""What this process may use of its machine: cores and memory, as its container limits them.

A container sees all of its host's cores and memory, and is slowed down or killed beyond its quota.
The quotas are read where Linux has them: at the process's own control group and all groups above,
of version 2 (docs.kernel.org/admin-guide/cgroup-v2.html) and version 1 (the same site's
admin-guide/cgroup-v1/memory.html and scheduler/sched-bwc.html).
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
    for group, version in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError, IndexError, ZeroDivisionError):
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()  # "max 100000": no limit
            else:
                quota = (group / "cpu.cfs_quota_us").read_text()  # -1: no limit
                period = (group / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield each limit on this process's memory, and what is used of it, bytes."""
    for group, version in _groups("memory"):
        limit, used, dropped = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        with contextlib.suppress(OSError, ValueError, KeyError):  # "max": no limit
            most = int((group / limit).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield most, int((group / used).read_text()) - int(stat[dropped])


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups that this process is in, and their version."""
    with contextlib.suppress(OSError):
        own = _own_groups()
        for line in (ROOT / "proc/self/mountinfo").read_text().splitlines():
            # id parent device root mount-point options ... - type source options
            before, _, after = line.partition(" - ")
            kind, _, rest = after.partition(" ")
            options = rest.rpartition(" ")[2]  # the source before it may be empty
            if kind == "cgroup2":
                version = 2
                path = own.get("")
            elif kind == "cgroup" and controller in options.split(","):
                version = 1
                path = own.get(controller)
            else:
                continue
            if path is not None:
                root, mount = before.split()[3:5]
                for folder in _upwards(path, root):
                    yield ROOT / mount.lstrip("/") / folder, version


def _own_groups() -> dict[str, str]:
    """Return this process's control group for each controller; version 2's is called ""."""
    found = {}
    for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _upwards(path: str, root: str) -> list[PurePosixPath]:
    """Return a control group and all above it, relative to where its tree is mounted.

    `root` is the part of the tree that is mounted, which may be the container's own group.
    """
    group = PurePosixPath(path)
    inside = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    return [inside, *inside.parents]
