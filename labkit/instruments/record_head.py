"""What a record begins with, and the events that it can do without."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import labkit
from labkit.stamps.events import VERSION, EventLog

LONGEST = 300  # characters of an error that are kept


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


def write_or_why(log: EventLog, event: str, measure: Callable[[], Mapping[str, object]]) -> None:
    """Write `event` with what `measure` returns, or "no_" + `event` and why; never raise."""
    try:
        log.write(event, **measure())
    except Exception as error:  # a number is missing; the run is none the worse
        log.write(f"no_{event}", why=f"{type(error).__name__}: {str(error)[:LONGEST]}")
