"""The telemetry of a process that no supervisor started."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def telemetry_beside(folder: Path) -> subprocess.Popen[bytes] | None:
    """Sample the instruments beside this process, in one that dies with it; None where it fails."""
    if sys.platform != "linux":  # it could outlive us
        return None
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    with suppress(OSError):  # numbers without telemetry are still numbers
        return subprocess.Popen(
            [sys.executable, "-m", "labkit.bench.telemetry", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # no Ctrl-C
        )
    return None
