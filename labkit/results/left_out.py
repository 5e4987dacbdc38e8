"""What the log of a run of days leaves out: it has the first steps, and the sums of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.results.text import percent

if TYPE_CHECKING:
    from labkit.results.run_log import RunLog


def waits_of_all(run: RunLog) -> tuple[float, float] | None:
    """Return the share of the time in which a watched loop waited for data, and in its newer half.

    None where all of its steps are in the log.
    """
    if run.sums is None:
        return None
    half = run.sums["steps"] / 2
    older = [each for each in run.all_sums if each["steps"] <= half]
    return _waits(run.sums), _waits(run.sums, older[-1] if older else {})


def _waits(sums: dict[str, int], before: dict[str, int] | None = None) -> float:
    """Return the share of the waiting that `sums` have and those `before` had not, 0 to 1."""
    wait, wall = (sums[name] - (before or {}).get(name, 0) for name in ("wait", "wall"))
    return min(1.0, max(0, wait) / max(1, wall))


def in_words(run: RunLog) -> str:
    """Say which steps are in the log, and how all of them waited; "" where none was left out."""
    waits = waits_of_all(run)
    if waits is None:
        return ""
    whole, newer = map(percent, waits)
    return (
        f"the first {run.steps:,} of {run.steps_made:,} steps are recorded; over all of them the "
        f"loop waited for data {whole} of the time, over the newer half {newer}"
    )
