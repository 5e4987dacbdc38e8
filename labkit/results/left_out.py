"""What the log of a run of days leaves out: it has the first steps, and the sums of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.results.text import percent

if TYPE_CHECKING:
    from labkit.results.run_log import RunLog


def wait_of_all(run: RunLog) -> float | None:
    """Return the share of the time in which a watched loop waited for data, 0 to 1.

    None where all of its steps are in the log.
    """
    if run.sums is None:
        return None
    return min(1.0, max(0, run.sums["wait"]) / max(1, run.sums["wall"]))


def in_words(run: RunLog) -> str:
    """Say which steps are in the log, and how all of them waited; "" where none was left out."""
    wait = wait_of_all(run)
    if wait is None:
        return ""
    return (
        f"the first {run.steps:,} of {run.steps_made:,} steps are recorded; over all of them the "
        f"loop waited for data {percent(wait)} of the time"
    )
