"""Describe a machine without its accelerators and without torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from labkit import quotas

CPU_INFO = Path("/proc/cpuinfo")
BRAND = "machdep.cpu.brand_string"  # macOS


def plain_machine(name: str) -> dict[str, Any]:
    """Describe a machine without its accelerators, as JSON types."""
    cores = quotas.cpu_cores()
    return {
        "device": "cpu",
        "kind": "cpu",
        "name": name,
        "cpu_name": name,
        "cpu_cores": cores.count,
        "host_cores": cores.of,
        "cores_limit": cores.limit,
        "os": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version()},
    }


def cpu_name() -> str:
    """Return the processor's name, as the system tells it."""
    text = ""
    with contextlib.suppress(OSError):
        text = CPU_INFO.read_text()
    if "model name" not in text:  # an ARM's has numbers, which lscpu knows the names of
        text += _said_by("lscpu") + "model name:" + _said_by("sysctl", "-n", BRAND)
    names = re.findall(r"^model name\s*:(.*\S)", text, re.MULTILINE | re.IGNORECASE)
    known = [" ".join(name.split()) for name in names if name.strip() != "-"]
    return known[0] if known else platform.processor() or platform.machine()


def _said_by(*command: str) -> str:
    """Return what a command of the system prints; "" where there is none."""
    environment = os.environ | {"LC_ALL": "C"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, env=environment, stderr=subprocess.DEVNULL, text=True, timeout=5
        )
    return ""
