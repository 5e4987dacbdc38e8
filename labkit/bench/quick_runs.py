"""Quick runs, as the tests of notebooks ask for them by LABKIT_QUICK=1."""

from __future__ import annotations

import os

from labkit.spec import Job

QUICK_SHARE = 0.25  # of its time limit that a quick run takes
QUICK_S = 0.5  # but no less than this


def quick_run() -> bool:
    """Return whether LABKIT_QUICK=1 asks for short runs and few repeats."""
    return os.environ.get("LABKIT_QUICK") == "1"


def shorten(job: Job, not_applied: dict[str, str]) -> None:
    """Cut the time limit of a run to a quarter, but not below half a second (LABKIT_QUICK=1)."""
    if job.seconds is not None and job.seconds > QUICK_S:
        job.seconds = max(QUICK_S, job.seconds * QUICK_SHARE)
        not_applied["seconds"] = f"LABKIT_QUICK=1: {job.seconds:g} s"
