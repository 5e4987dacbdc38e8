"""Events that a run can do without: where one cannot be measured, the log says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from labkit.stamps.events import EventLog

LONGEST = 300  # characters of an error that are kept


def write_or_why(log: EventLog, event: str, measure: Callable[[], Mapping[str, object]]) -> None:
    """Write `event` with what `measure` returns, or "no_" + `event` and why; never raise."""
    try:
        log.write(event, **measure())
    except Exception as error:  # a number is missing; the run is none the worse
        log.write(f"no_{event}", why=f"{type(error).__name__}: {str(error)[:LONGEST]}")
