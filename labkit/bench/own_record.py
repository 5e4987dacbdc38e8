"""What a record begins with; and the telemetry of a process that no supervisor started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import labkit
from labkit.process.events import VERSION, EventLog


def spec_event(run: str, **described: object) -> dict[str, Any]:
    """Return the first event of a record: whose and when it is, and what was asked for."""
    return {
        "event": "spec",
        "version": VERSION,
        "run": run,
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "labkit": labkit.__version__,
        **described,
    }


def write_spec(log: EventLog, run: str, pipeline: Mapping[str, object], **more: object) -> None:
    """Write what the record of this process begins with; `pipeline` is what was asked for."""
    log.write(**spec_event(run, pipeline=pipeline, **more))
    log.write("hello", pid=os.getpid())


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
