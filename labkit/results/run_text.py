"""What was simulated behind the numbers of runs, in words."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.results.ranks import RanksData
from labkit.results.run_data import RunData


def delays_of(runs: Iterable[RunData | RanksData], varied: Iterable[str] = ()) -> str:
    """Return the simulated delays behind the runs' numbers; "" if there are none.

    Where they differ by one of the `varied` knobs, the figure itself says which is which.
    """
    runs = list(runs)
    measured = [run for run in runs if run.throughput is not None]
    found = dict.fromkeys(run.pipeline.simulated_delay for run in measured)
    if not any(found):
        return ""
    swept = [name for name in varied if "_ms" in name]
    if len(found) > 1 and swept:
        return f"simulated delay: {' and '.join(swept)}, as shown"
    return f"simulated delay: {' / '.join(text or 'none' for text in found)}"
