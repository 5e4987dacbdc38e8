"""Quick runs, as the tests of notebooks ask for them by LABKIT_QUICK=1."""

from __future__ import annotations

import os

from labkit.spec import Job

QUICK_SHARE = 0.25  # of its time limit that a quick run takes; without one, of its steps
LEAST = {"seconds": 0.5, "steps": 40}


def quick_run() -> bool:
    """Return whether LABKIT_QUICK=1 asks for short runs and few repeats."""
    return os.environ.get("LABKIT_QUICK") == "1"


def shorten(job: Job, not_applied: dict[str, str]) -> None:
    """Where LABKIT_QUICK=1, cut a run to a quarter of its time limit, or without one of its steps.

    A run keeps at least half a second, or 40 steps.
    """
    limit = "steps" if job.seconds is None else "seconds"
    asked = getattr(job, limit)
    if quick_run() and asked > LEAST[limit]:
        left = max(LEAST[limit], type(asked)(asked * QUICK_SHARE))
        setattr(job, limit, left)
        not_applied[limit] = f"LABKIT_QUICK=1: {left:g} {limit}"
