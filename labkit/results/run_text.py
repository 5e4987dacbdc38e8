"""What was simulated behind the numbers of runs, in words."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.results.ranks import RanksData
from labkit.results.run_data import RunData


def delays_of(runs: Iterable[RunData | RanksData]) -> str:
    """Return the simulated delays behind the runs' numbers; "" if there are none."""
    measured = [run for run in runs if run.throughput is not None]
    found = dict.fromkeys(run.pipeline.simulated_delay or "none" for run in measured)
    return "" if found.keys() <= {"none"} else f"simulated delay: {' / '.join(found)}"
