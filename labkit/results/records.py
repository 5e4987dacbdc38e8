"""Saved records: what kind a record is, and what it says."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping

from labkit.results.measurements import MeasurementsData
from labkit.results.ranks import RanksData
from labkit.results.run_data import RunData
from labkit.stamps.record import Event, RecordError, events_of

HEAD_EVENTS = 20  # of a record: its spec and its machine are among them


def kind_of(spec: Mapping[str, object]) -> type[RunData | RanksData | MeasurementsData]:
    """Return what a log becomes whose first event holds `spec`."""
    if spec.get("measure"):
        return MeasurementsData
    return RanksData if spec.get("ranks") else RunData


def head_of(path: str | os.PathLike[str]) -> dict[str, Event]:
    """Return the first event of each name in a record's head; {} where it is no record."""
    found: dict[str, Event] = {}
    with contextlib.suppress(RecordError):
        for event in itertools.islice(events_of(path), HEAD_EVENTS):
            found.setdefault(event["event"], event)
    return found
