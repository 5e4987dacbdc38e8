"""Opening a record: of a run, or of an experiment's measurements."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.lab.experiment import Measurements
from labkit.lab.ranks import Ranks
from labkit.lab.record import first_event
from labkit.lab.run import Run


def load(path: str | os.PathLike) -> Run | Measurements | Ranks:
    """Load a saved or recorded run; raises RecordError (a ValueError) on anything else."""
    first = first_event(path)
    kind = Measurements if "experiment" in first else Ranks if "ranks" in first else Run
    return kind(Path(path), recorded=True)
