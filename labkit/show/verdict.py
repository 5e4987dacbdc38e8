"""A run in a sentence: what limits it, and what has changed since the run before."""

from __future__ import annotations

from typing import Any

from labkit.results.run import Run
from labkit.show.step_parts import step_parts

HEALTHY = 0.8  # busy share from which the device itself is the limit


def verdict(run: Run) -> str:
    """Say what the run's time went into and which notebook shows the cure."""
    if run.error or run.utilization is None:
        return run.error or f"{run.outcome.capitalize()} after {run.steps} steps: too few to tell."
    busy = f"{run.machine.kind.upper()} busy {run.busy_text}"
    parts = step_parts(run)
    whole = sum(parts.values())
    wait, copy, other = (parts[name] / whole for name in ("wait", "copy", "other"))
    if run.utilization >= HEALTHY and run.utilization_is_upper_bound:
        words = "neither data nor copies hold it up; gaps between kernels show with xray=True only."
    elif run.utilization >= HEALTHY:
        words = "the device is the limit. Notebooks 04, 05 and 07 make its own work cheaper."
    elif wait >= max(copy, other):
        words = f"waiting for data takes {wait:.0%} of each step. Notebook 03 shows the cure."
    elif copy >= other:
        words = f"copies to the device take {copy:.0%} of each step. Notebook 03 overlaps them."
    else:
        words = f"gaps while the host issues work take {other:.0%} of each step: see notebook 07."
    return f"{busy}: {words}{_not_finite(run)}"


def _not_finite(run: Run) -> str:
    """Say where the loss stopped being a number; the timing is sound all the same."""
    gone = [] if run.watched else [i for i, loss in enumerate(run.loss) if loss != loss]
    return f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""


def against(run: Run, before: Run) -> str:
    """Say what was changed since `before` and what it brought."""
    new, old = run.asked.to_dict(), before.asked.to_dict()
    changes = [
        f"{name} {_shown(old[name])} → {_shown(new[name])}"
        for name in new
        if new[name] != old[name]
    ]
    what = ", ".join(changes) or "same knobs"
    return f"Against the run before ({what}): {run.compare(before).verdict}"


def _shown(value: Any) -> str:
    return "auto" if value is None else str(value)
