"""A run's numbers, and what was simulated behind them, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from labkit.text import noise

if TYPE_CHECKING:
    from labkit.results.ranks import Ranks
    from labkit.results.run import Run

SLOW_START_S = 1.0  # a shorter start of the workers needs no word
LEAST_SHOWN_MS = 0.05  # is 0.0 when printed


def numbers(run: Run) -> str:
    """Return the measured numbers in one line, with what was simulated rather than measured."""
    if run.throughput is None:
        return f"{run.steps} steps: too few to measure"
    measured = f"{in_short(run)}, step {run.step_ms:.1f} ms ({_parts(run)})"
    return "; ".join([measured, *_remarks(run)])


def in_short(run: Run) -> str:
    """Return the throughput and the utilization of a run that has them."""
    return f"{run.throughput:.0f} {run.unit}/s, {run.machine.kind.upper()} busy {run.busy_text}"


def delays_of(runs: Iterable[Run | Ranks], varied: Iterable[str] = ()) -> str:
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


def _parts(run: Run) -> str:
    """Return the parts of the mean step, ms."""
    body = "loop body" if run.watched else "compute"
    parts = {"wait": run.wait_ms, "copy": run.copy_ms, body: run.compute_ms}
    if (run.other_ms or 0.0) >= LEAST_SHOWN_MS:
        parts["other"] = run.other_ms
    return ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items() if ms is not None)


def _remarks(run: Run) -> list[str]:
    """Return what else a reader of the numbers has to know."""
    remarks = []
    if run.mfu_text:
        remarks.append(f"{run.mfu_text} of {run.peak}")
    if run.padding:
        remarks.append(f"padding {run.padding:.0%}")
    if (run.startup_s or 0.0) > SLOW_START_S:
        remarks.append(f"the loop waited {run.startup_s:.1f} s for its workers to start")
    if run.no_events:
        how = "timed on the host's clock, waiting for each step"
        remarks.append(f"{how}: {run.no_events}")
    if run.is_cut_short:
        remarks.append(f"no more than the first {run.steps:,} steps are recorded")
    delay = run.pipeline.simulated_delay
    if delay:
        remarks.append(f"simulated delay: {delay}")
    if run.spread is not None and run.noisy:
        remarks.append(noise(run.spread))
    return remarks
