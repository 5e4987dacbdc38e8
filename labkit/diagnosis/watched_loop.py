"""Facts of a watched loop beyond its stamps: its passes, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Lines, lines_of
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
    mask: np.ndarray  # (samples,) of the lines that grew


@dataclass(frozen=True)
class Loop:
    """Facts of a watched loop. Shares are of wall time, 0 to 1; 0 where nothing showed."""

    lines: Lines
    spent: np.ndarray = field(repr=False)  # (steps,) s, of all steps: how long their bodies took
    copied: float  # of the waiting beside a GPU that rests, 0 to 1: a trainer copies the batch
    drift: Drift | None
    passes: int


def loop_of(run: RunData) -> Loop | None:
    """Return what the loop of a watched run shows; None of other runs."""
    if not run.watched or run.steps < limits.MIN_STEPS:
        return None
    lines = lines_of(run)
    spent = body_seconds(run.stamps)
    is_timed = run.machine.kind == "gpu" and not run.launches_only
    return Loop(
        lines=lines,
        spent=spent,
        copied=_copied(lines, run.stamps) if is_timed else 0.0,
        drift=_drift(run, spent[run.warmup :]),
        passes=len({0, *(step for step in run.first_steps if step < run.steps)}),
    )


def _copied(lines: Lines, stamps: np.ndarray) -> float:
    """Return which part (0 to 1) of the waiting beside a device that rests is a copy to it.

    A trainer may move a batch to the device before it hands it on.
    """
    waits = lines.mask("waiting") & (lines.step > 0)
    rests_from = np.maximum.accumulate(stamps[:, 5])[lines.step - 1]
    rests = np.clip(lines.moment - rests_from, 0.0, lines.seconds)  # of what a sample stands for
    is_copy = (lines.kind == "copy") & (lines.within == "")  # and no part of preparing an item
    return float(rests[waits & is_copy].sum() / max(rests[waits].sum(), 1e-9))


def _drift(run: RunData, spent: np.ndarray) -> Drift | None:
    """Return how the steps grow, and the line that does; None where they do not.

    `spent` (steps,) s is how long their bodies took, warm-up excluded. Batches that grow as much
    explain it.
    """
    if len(spent) < 5 * limits.MIN_STEPS:
        return None
    fifths = np.array_split(np.arange(len(spent)), 5)
    middle = np.array([np.median(spent[part]) for part in fifths])
    steps_up = np.diff(middle)
    rises = (steps_up > -0.1 * middle[:-1]).all() and (steps_up > 0).sum() >= 3
    growth = float(middle[-1] / max(middle[0], 1e-9))
    sizes = run.batch_bytes[run.warmup :]
    larger = np.median(sizes[fifths[-1]]) / np.median(sizes[fifths[0]])  # NaN: not known
    begin, end = run.stamps[[run.warmup - 1, -1], 5]
    share = float(np.clip(spent - middle[0], 0, None).sum() / max(end - begin, 1e-9))
    is_small = growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2
    if not rises or is_small or larger >= limits.DRIFT:
        return None
    lines = lines_of(run)
    shares = [
        np.bincount(lines.place[there], lines.share[there], len(lines.places))
        for part in (fifths[0], fifths[-1])
        for there in [lines.in_body & np.isin(lines.step, part + run.warmup)]
    ]
    grew = np.argmax(shares[1] - shares[0])
    return Drift(growth, share, lines.in_body & (lines.place == grew))
