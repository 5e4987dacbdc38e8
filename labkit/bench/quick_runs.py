"""Quick runs, as the tests of notebooks ask for them by LABKIT_QUICK=1."""

from __future__ import annotations

import os

from labkit.spec import Job

QUICK_SHARE = 0.25  # of its time limit that a quick run takes; without one, of its steps
QUICK_S = 0.5  # but no less than this
QUICK_STEPS = 40


def quick_run() -> bool:
    """Return whether LABKIT_QUICK=1 asks for short runs and few repeats."""
    return os.environ.get("LABKIT_QUICK") == "1"


def shorten(job: Job, not_applied: dict[str, str]) -> None:
    """Where LABKIT_QUICK=1, cut a run to a quarter of its time limit, or without one of its steps.

    A run keeps at least half a second, or 40 steps.
    """
    if not quick_run():
        return
    if job.seconds is None:
        if job.steps > QUICK_STEPS:
            job.steps = max(QUICK_STEPS, round(job.steps * QUICK_SHARE))
            not_applied["steps"] = f"LABKIT_QUICK=1: {job.steps} steps"
    elif job.seconds > QUICK_S:
        job.seconds = max(QUICK_S, job.seconds * QUICK_SHARE)
        not_applied["seconds"] = f"LABKIT_QUICK=1: {job.seconds:g} s"
