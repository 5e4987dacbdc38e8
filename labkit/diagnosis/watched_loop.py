"""Facts of a watched loop beyond its stamps: its lines, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Line, Lines, lines_of
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import body_seconds

# Parts of a loop's body, of those in `hot_lines.PART_OF_KIND`, in which the host gives the
# device nothing to do
HOST_ALONE = ("python", "logging", "waiting", "loader")


@dataclass(frozen=True)
class Drift:
    """Steps that take longer and longer."""

    growth: float  # of the last fifth of the steps over the first
    share: float  # of wall time beyond what the first fifth took
    lines: tuple[Line, ...]  # of the last fifth, the costliest first


@dataclass(frozen=True)
class Loop:
    """Facts of a watched loop."""

    lines: Lines
    spent: np.ndarray = field(repr=False)  # (steps,) s, of all steps: how long their bodies took
    drift: Drift | None


def loop_of(run: RunData) -> Loop | None:
    """Return what the loop of a watched run shows; None of other runs."""
    if not run.watched or run.steps < limits.MIN_STEPS:
        return None
    return Loop(lines_of(run), body_seconds(run.stamps), _drift(run))


def _drift(run: RunData) -> Drift | None:
    """Return how the steps grow; None where they do not.

    Batches that grow as much explain it.
    """
    steps = np.arange(run.warmup, run.steps)
    if len(steps) < 5 * limits.MIN_STEPS:
        return None
    spent = body_seconds(run.stamps)[steps]
    fifths = np.array_split(steps, 5)
    middle = np.array([np.median(part) for part in np.array_split(spent, 5)])
    steps_up = np.diff(middle)
    rises = (steps_up > -0.1 * middle[:-1]).all() and (steps_up > 0).sum() >= 3
    growth = float(middle[-1] / max(middle[0], 1e-9))
    sizes = run.batch_bytes
    larger = np.median(sizes[fifths[-1]]) / np.median(sizes[fifths[0]])  # NaN: not known
    begin, end = run.stamps[[run.warmup - 1, -1], 5]
    share = float(np.clip(spent - middle[0], 0, None).sum() / max(end - begin, 1e-9))
    is_small = growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2
    if not rises or is_small or larger >= limits.DRIFT:
        return None
    lines = lines_of(run)
    late = lines.mask("body") & (lines.frame.step >= fifths[-1][0])
    return Drift(growth, share, lines.rows(late)[:3])
