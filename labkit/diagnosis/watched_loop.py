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
    spent = body_seconds(run.stamps)
    return Loop(lines_of(run), spent, _drift(run, spent))


def _drift(run: RunData, spent: np.ndarray) -> Drift | None:
    """Return how the steps grow; None where they do not. Batches that grow as much explain it."""
    fifths = np.array_split(np.arange(run.warmup, run.steps), 5)
    if len(fifths[-1]) < limits.MIN_STEPS:
        return None
    first, *_, last = middle = np.array([np.median(spent[part]) for part in fifths])
    small, *_, large = (np.median(run.batch_bytes[part]) for part in fifths)  # NaN: not known
    beyond = np.clip(spent[run.warmup :] - first, 0, None).sum()
    began, ended = run.stamps[[run.warmup - 1, -1], 5]
    share = float(beyond / max(ended - began, 1e-9))
    rises = (np.diff(middle) > 0).sum() >= 3 and last >= limits.DRIFT * first
    if not rises or large >= limits.DRIFT * small or share < limits.WORTH_NAMING["host"] / 2:
        return None
    lines = lines_of(run)
    late = lines.mask("body") & (lines.frame.step >= fifths[-1][0])
    return Drift(float(last / max(first, 1e-9)), share, lines.rows(late)[:3])
