"""What reads a log, live or recorded: a run, ranks, or an experiment's measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import first_event
from labkit.results.run import Run


def load(path: str | os.PathLike) -> Run | Measurements | Ranks:
    """Load a saved or recorded run; raises RecordError (a ValueError) on anything else."""
    return kind_of(first_event(path))(Path(path), recorded=True)


def kind_of(spec: dict[str, Any]) -> type[Run] | type[Measurements] | type[Ranks]:
    """Return what reads a log whose first event holds `spec`."""
    return Measurements if "experiment" in spec else Ranks if "ranks" in spec else Run
