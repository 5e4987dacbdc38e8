"""Describe a machine without its accelerators and without torch."""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import Any

from labkit import quotas


def plain_machine() -> dict[str, Any]:
    """Describe a machine without its accelerators, as JSON types."""
    name = cpu_name()
    cores = quotas.cpu_cores()
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
