"""Facts of a watched loop beyond its stamps: its passes, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Lines
from labkit.results.run import Run
from labkit.results.step_classes import body_seconds

# Parts of a loop's body, of those in `sampled_stacks.PART_OF_KIND`, in which the host gives the
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
    found = run.lines
    first = run.warmup
    steps = run.steps
    stamps = run.stamps
    spent = body_seconds(stamps)
    wall = max(float(stamps[-1, 5] - stamps[first - 1, 5]), 1e-9)
    begun = {0, *(event["step"] for event in run.passes_begun)}
    starts = sorted(start for start in begun if start < steps)
    return Loop(
        lines=found,
        spent=spent,
        copied=0.0 if run.machine.kind != "gpu" or run.launches_only else _copied(found, stamps),
        drift=_drift(spent[first:], run.batch_bytes[first:], first, wall, found),
        passes=len(starts),
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


def _drift(
    spent: np.ndarray, batch_bytes: np.ndarray, first: int, wall: float, found: Lines
) -> Drift | None:
    """Return how the steps grow, and the line that does; None where they do not."""
    if len(spent) < 5 * limits.MIN_STEPS:
        return None
    fifths = np.array_split(np.arange(len(spent)), 5)
    middle = np.array([np.median(spent[part]) for part in fifths])
    larger = np.median(batch_bytes[fifths[-1]]) / np.median(batch_bytes[fifths[0]])
    growth = float(middle[-1] / max(middle[0], 1e-9))
    steps_up = np.diff(middle)
    rises = (steps_up > -0.1 * middle[:-1]).all() and (steps_up > 0).sum() >= 3
    share = float(np.clip(spent - middle[0], 0, None).sum() / wall)
    if not rises or growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2:
        return None
    if larger >= limits.DRIFT:  # the input grows; NaN: not known
        return None
    in_body = found.mask("body")

    def by_place(steps: np.ndarray) -> np.ndarray:
        some = in_body & np.isin(found.step, steps + first)
        return np.bincount(found.place[some], found.share[some], len(found.places))

    grew = np.argmax(by_place(fifths[-1]) - by_place(fifths[0]))
    return Drift(growth, share, in_body & (found.place == grew))
