"""What a record begins with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import labkit
from labkit.stamps.events import VERSION, EventLog


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
