"""What this process may use of its machine: cores and memory, as its container limits them.

A container sees all of its host's cores and memory, and is slowed down or killed beyond its quota.
The quotas are read where Linux has them, under /sys/fs/cgroup: at the process's own control group
and all groups above, of version 2 (docs.kernel.org/admin-guide/cgroup-v2.html) and version 1 (the
same site's admin-guide/cgroup-v1/memory.html and scheduler/sched-bwc.html).
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

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
    limits = [*_limits("cpu.max"), *_limits("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    quotas = [int(quota) / int(period) for quota, period in limits]
    quota = min((math.floor(cores + 0.5) for cores in quotas), default=allowed)
    if quota < allowed:
        return Cores(max(1, quota), machine, "quota")
    return Cores(allowed, machine, "affinity" if allowed < machine else None)


def ram_bytes() -> int:
    """Return the memory that this process and those beside it may use in all."""
    import psutil

    limits = [*_limits("memory.max"), *_limits("memory.limit_in_bytes")]
    return min([psutil.virtual_memory().total, *(int(most) for (most,) in limits)])


def _limits(*files: str) -> Iterator[list[str]]:
    """Yield the words of some files of each control group of this process, where they limit it.

    A container's own may be where the whole tree's root is elsewhere: that one is asked too.
    """
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # version 2 names no controllers
            group = PurePosixPath(path.lstrip("/"))
            folder = ROOT / "sys/fs/cgroup" / controllers
            for each in (group, *group.parents):
                with contextlib.suppress(OSError):
                    words = " ".join((folder / each / file).read_text() for file in files).split()
                    if words[0] not in ("max", "-1"):
                        yield words


def plain_machine() -> dict[str, Any]:
    """Describe a machine without its accelerators, as JSON types."""
    name = cpu_name()
    cores = cpu_cores()
    return {
        "device": "cpu",
        "kind": "cpu",
        "name": name,
        "cpu_name": name,
        "cpu_cores": cores.count,
        "host_cores": cores.of,
        "cores_limit": cores.limit,
        "versions": {"python": platform.python_version()},
    }


def cpu_name() -> str:
    """Return the processor's name, as the system tells it."""
    with contextlib.suppress(OSError):  # Linux
        text = Path("/proc/cpuinfo").read_text()
        if known := re.search(r"^model name\s*:(.*)", text, re.MULTILINE):
            return " ".join(known[1].split())
    return platform.processor() or platform.machine()
