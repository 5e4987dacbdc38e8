"""Facts of a watched loop beyond its stamps: its lines, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Lines, lines_of
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import body_seconds

# Parts of a loop's body, of those in `hot_lines.PART_OF_KIND`, in which the host gives the
# device nothing to do
HOST_ALONE = ("python", "logging", "waiting", "loader")


class Drift(NamedTuple):
    """Steps that take longer and longer."""

    growth: float  # of the last fifth of the steps over the first
    share: float  # of wall time beyond what the first fifth took


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
    spent = body_seconds(run.stamps)
    return Loop(lines_of(run), spent, _drift(run, spent[run.warmup :]))


def _drift(run: RunData, spent: np.ndarray) -> Drift | None:
    """Return how the steps grow; None where they do not. Batches that grow as much explain it."""
    fifths = np.array_split(spent, 5)
    sizes = np.array_split(run.batch_bytes[run.warmup :], 5)  # NaN: not known
    if len(fifths[-1]) < limits.MIN_STEPS:
        return None
    middle = np.array([np.median(part) for part in fifths])
    growth = middle[-1] / max(middle[0], 1e-9)
    is_explained = np.median(sizes[-1]) >= limits.DRIFT * np.median(sizes[0])
    share = np.clip(spent - middle[0], 0, None).sum() / max(run.length_s - run.warm_s, 1e-9)
    rises = (np.diff(middle) > 0).sum() >= 3 and growth >= limits.DRIFT
    if not rises or is_explained or share < limits.WORTH_NAMING["host"] / 2:
        return None
    return Drift(float(growth), float(share))
