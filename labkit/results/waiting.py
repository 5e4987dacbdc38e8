"""Waiting for a run, and stopping it by an interrupt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from labkit.process.interrupts import held
from labkit.process.notebook import in_notebook

if TYPE_CHECKING:
    from labkit.results.event_log import EventLogResult

Log = TypeVar("Log", bound="EventLogResult")

POLL_S = 0.05  # between two looks at a run that goes on


def wait(log: Log, each: Callable[[Log], object] | None) -> Log:
    """Block until the run has ended, calling `each(log)` as it grows. An interrupt stops it.

    In a notebook the stopped run is returned; elsewhere KeyboardInterrupt is passed on.
    """
    try:
        return wait_or_raise(log, each)
    except KeyboardInterrupt:
        if log.running or not in_notebook():
            raise
        if log.outcome == "stopped":
            print(f"{log.ended}; what was measured by then is in what this returned.")
        return log


def wait_or_raise(log: Log, each: Callable[[Log], object] | None) -> Log:
    """Do as `wait`, but pass an interrupt on in a notebook too."""
    with held() as pressed:  # so that reading an event or stopping is never cut short
        try:
            while log.running and not pressed:
                if each is not None:
                    each(log)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            pressed.append(0.0)
        if pressed:
            log.stop()
            pressed.clear()
            raise KeyboardInterrupt
        return log.settle()
