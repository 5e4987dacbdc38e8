"""Facts of a watched loop beyond its stamps: its passes, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Lines
from labkit.results.run import Run
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


def loop_of(run: Run) -> Loop | None:
    """Return what the loop of a watched run shows; None of other runs."""
    if not run.watched or run.steps < limits.MIN_STEPS:
        return None
    lines = run.lines
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


def _drift(run: Run, spent: np.ndarray) -> Drift | None:
    """Return how the steps grow, and the line that does; None where they do not.

    `spent` (steps,) s is how long their bodies took, warm-up excluded.
    """
    if len(spent) < 5 * limits.MIN_STEPS:
        return None
    fifths = np.array_split(np.arange(len(spent)), 5)
    middle = np.array([np.median(spent[part]) for part in fifths])
    batch_bytes = run.batch_bytes[run.warmup :]
    larger = np.median(batch_bytes[fifths[-1]]) / np.median(batch_bytes[fifths[0]])
    growth = float(middle[-1] / max(middle[0], 1e-9))
    steps_up = np.diff(middle)
    rises = (steps_up > -0.1 * middle[:-1]).all() and (steps_up > 0).sum() >= 3
    begin, end = run.stamps[[run.warmup - 1, -1], 5]
    share = float(np.clip(spent - middle[0], 0, None).sum() / max(end - begin, 1e-9))
    if not rises or growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2:
        return None
    if larger >= limits.DRIFT:  # the input grows; NaN: not known
        return None
    lines = run.lines

    def by_place(steps: np.ndarray) -> np.ndarray:
        some = lines.in_body & np.isin(lines.step, steps + run.warmup)
        return np.bincount(lines.place[some], lines.share[some], len(lines.places))

    grew = np.argmax(by_place(fifths[-1]) - by_place(fifths[0]))
    return Drift(growth, share, lines.in_body & (lines.place == grew))
