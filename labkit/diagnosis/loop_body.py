"""What a watched loop shows beyond its stamps: its lines, its passes, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Line, Lines
from labkit.results.step_classes import body_seconds

if TYPE_CHECKING:
    from labkit.results.run import Run

IN_WORDS = {  # what a body that is no training does, by the part of it
    "python": "Python",
    "logging": "logging and files",
    "waiting": "waiting: for a sleep, a lock, a network or another program",
    "validation": "passes without gradients (validation, a policy's rollouts, a teacher)",
    "loader": "waiting for another DataLoader",
}
COLLATE = "collate"
ITEMS = ("__getitem__", "__getitems__", "__iter__", "__next__")  # where all of it is, anyway


@dataclass(frozen=True)
class Drift:
    """Steps that take longer and longer."""

    growth: float  # of the last fifth of the steps over the first
    share: float  # of wall time beyond what the first fifth took
    mask: np.ndarray  # (samples,) of the lines that grew
    larger: float | None = None  # the batches, by this factor, where that explains it


@dataclass(frozen=True)
class Stalls:
    """In which steps some work makes the loop stall."""

    count: int  # of these steps
    every: int | None = None  # steps from one to the next, where they come regularly

    def __str__(self) -> str:
        if self.every is None:
            return f"in {self.count} single steps"
        return f"in every {_nth(self.every)} step"


@dataclass(frozen=True)
class BodyWork:
    """What a part of the loop does, and the lines that it does it in."""

    cause: str
    lines: tuple[Line, ...]
    share: float = 0.0  # of that part, in the first of the lines
    when: Stalls | None = None  # in which steps, where they are few or regular


@dataclass(frozen=True)
class Loop:
    """Facts of a watched loop. Shares are of wall time, 0 to 1; 0 where nothing showed."""

    lines: Lines
    body: np.ndarray = field(repr=False)  # (steps, IN_WORDS) sampled share that is no training
    sampled: np.ndarray = field(repr=False)  # (steps,) and of all
    spent: np.ndarray = field(repr=False)  # (steps,) s, of all steps: how long their bodies took
    drift: Drift | None
    restart: float  # spent on the first batches of later passes, for which workers start anew
    passes: int
    pass_s: float  # of wall time, on average
    cold: float  # by which the first pass was slower than the later ones
    first_pass: int  # its steps

    def shares(self, all_of_it: float, *groups: float) -> dict[str, float]:
        """Return the part (0 to 1) of a body that each group takes, from their summed shares."""
        if not self.lines.enough("body") or all_of_it <= 0:
            return {}
        parts = zip(IN_WORDS, groups, strict=True)
        return {name: float(share / all_of_it) for name, share in parts}

    @property
    def own_drift(self) -> Drift | None:
        """How its steps grow, where their batches do not explain that."""
        return None if self.drift is None or self.drift.larger else self.drift

    @cached_property
    def loading(self) -> BodyWork | None:
        """What stands out in preparing items."""
        return _of_loading(self.lines)


def loop_of(run: Run) -> Loop | None:
    """Return what the loop of a watched run shows; None of other runs."""
    if not run.watched or run.steps < limits.MIN_STEPS:
        return None
    found = run.lines
    first = run.warmup
    stamps = run.stamps
    spent = body_seconds(stamps)
    wall = max(float(stamps[-1, 5] - stamps[first - 1, 5]), 1e-9)
    measured = found.mask("body") & (found.step >= first)

    def per_step(mask: np.ndarray) -> np.ndarray:
        some = measured & mask
        return np.bincount(found.step[some] - first, found.share[some], run.steps - first)

    begun = {0, *(event["step"] for event in run.epochs)}
    starts = sorted(start for start in begun if start < run.steps)
    return Loop(
        lines=found,
        body=np.stack([per_step(found.of_part(part)) for part in IN_WORDS], axis=1),
        sampled=per_step(measured),
        spent=spent,
        drift=_drift(spent[first:], run.batch_bytes[first:], first, wall, found),
        restart=_restarts(stamps, starts) / wall if run.pipeline.num_workers else 0.0,
        passes=len(starts),
        pass_s=wall / len(starts),
        cold=_cold(stamps, starts) / wall,
        first_pass=starts[1] if len(starts) > 1 else len(stamps),
    )


def _drift(
    spent: np.ndarray, batch_bytes: np.ndarray, first: int, wall: float, found: Lines
) -> Drift | None:
    """Return how the steps grow, and the line that does; None where they do not."""
    if len(spent) < 5 * limits.MIN_STEPS:
        return None
    fifths = np.array_split(np.arange(len(spent)), 5)
    middle = np.array([np.median(spent[part]) for part in fifths])
    sizes = np.array([np.median(batch_bytes[part]) for part in fifths])
    growth = float(middle[-1] / max(middle[0], 1e-9))
    steps_up = np.diff(middle)
    rises = (steps_up > -0.1 * middle[:-1]).all() and (steps_up > 0).sum() >= 3
    share = float(np.clip(spent - middle[0], 0, None).sum() / wall)
    if not rises or growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2:
        return None
    in_body = found.mask("body")

    def by_place(steps: np.ndarray) -> np.ndarray:
        some = in_body & np.isin(found.step, steps + first)
        return np.bincount(found.place[some], found.share[some], len(found.places) + 1)

    grew = np.argmax(by_place(fifths[-1]) - by_place(fifths[0]))
    larger = _larger(middle, sizes)
    return Drift(growth, share, in_body & (found.place == grew), larger)


def _larger(spent: np.ndarray, batch_bytes: np.ndarray) -> float | None:
    """Return how much larger the batches become, where that explains how much longer the steps do.

    Both are medians of consecutive stretches; unknown sizes (NaN) explain nothing. A step may grow
    with the square of its batch, as attention does with the length of a sequence.
    """
    longer = spent / max(spent[0], 1e-9)
    larger = batch_bytes / batch_bytes[0]
    grows = larger[-1] >= limits.DRIFT
    is_explained = longer < limits.DRIFT * np.maximum(larger, 1.0) ** 2
    return float(larger[-1]) if grows and is_explained.all() else None


def _restarts(stamps: np.ndarray, starts: list[int]) -> float:
    """Return the time (s) for which the first batches of later passes made the loop wait."""
    wait = stamps[:, 1] - stamps[:, 0]
    return float(np.clip(wait[starts[1:]] - np.median(wait), 0, None).sum())


def _cold(stamps: np.ndarray, starts: list[int]) -> float:
    """Return the time (s) that the first pass took more than a later one; `starts` are steps."""
    if len(starts) < 2 or starts[1] < limits.MIN_STEPS:
        return 0.0
    passes = np.split(np.diff(stamps[:, 5], prepend=0.0), starts[1:])
    # without the first step of each
    medians = [float(np.median(steps[1:])) if len(steps) > 1 else 0.0 for steps in passes]
    rest = float(np.median(medians[1:]))
    slower = rest > 0 and medians[0] > limits.COLD * rest
    return (medians[0] - rest) * starts[1] if slower else 0.0


# -- what the rules of the diagnosis make of it ----------------------------------------------------


def group_of(loop: Loop, group: str) -> BodyWork:
    """Return what a part of the body that is no training does; a key of `IN_WORDS`."""
    mask = loop.lines.of_part(group)
    lines = loop.lines.worst(mask)
    when = stalls(loop, mask)
    body = float(loop.lines.share[loop.lines.mask("body")].sum())
    cause = group
    if when and (group != "validation" or when.every):
        cause = "periodic"
        lines = (*loop.lines.sites(mask)[:1], *lines)  # it is known by the line that begins it
    share = lines[0].share / max(body, 1e-9) if lines else 0.0
    return BodyWork(cause, lines, share, when if cause == "periodic" else None)


def synchronises(loop: Loop) -> tuple[float, tuple[Line, ...]] | None:
    """Return the part of the body in which the host waits for the device, and where; or None."""
    part = loop.lines.body.get("sync", 0.0)
    if part < limits.WORTH_NAMING["launch"]:
        return None
    return part, loop.lines.worst(loop.lines.of_part("sync"))


def stalls(loop: Loop, mask: np.ndarray) -> Stalls | None:
    """Return when the work of the masked samples comes; None where no steps stall for it."""
    usual = float(np.median(loop.spent))
    step = loop.lines.step[mask]
    share = loop.lines.share[mask]
    long = loop.spent[step] > limits.STALL * usual
    steps = np.unique(step[long])
    if share[long].sum() < limits.IN_STALLS * share.sum() or len(steps) < 2:
        return None
    gaps = np.diff(steps)
    every = int(np.median(gaps))
    missed = np.abs(gaps - every * np.round(gaps / every)) <= 1  # some may have had no sample
    if len(gaps) > 1 and every > 2 and missed.mean() >= limits.REGULAR:
        return Stalls(len(steps), every)
    few = len(steps) <= limits.FEW_STALLS * len(loop.spent)
    return Stalls(len(steps)) if few else None


def _of_loading(lines: Lines) -> BodyWork | None:
    """Return collating, or the line, helper function, Python code or few lines with most of it."""
    work = loading_mask(lines)
    whole = float(lines.share[work].sum())
    if whole <= 0:
        return None
    collates = work & (lines.within == COLLATE)
    part = float(lines.share[collates].sum()) / whole
    if part >= limits.MOST_OF_LOADING:
        return BodyWork(COLLATE, lines.worst(collates), part)
    rows = lines.rows(work & ~collates)
    most = lines.worst(work & ~collates)
    least = limits.MOST_OF_LOADING * whole
    python = [line for line in rows if line.kind == "python"]
    if rows and rows[0].share >= least:
        found = rows[:3]
    elif most and most[0].share >= least and not most[0].function.endswith(ITEMS):
        found = most
    elif sum(line.share for line in python) >= least:
        found = tuple(python[:3])
    elif sum(line.share for line in rows[:3]) >= least:
        found = rows[:3]
    else:
        return None
    return BodyWork("item", found, found[0].share / whole)


def costliest_of_loading(lines: Lines) -> tuple[Line, ...]:
    """Return the costliest lines of preparing items, where enough of it was sampled."""
    return lines.rows(loading_mask(lines))[:3]


def loading_mask(lines: Lines) -> np.ndarray:
    """Return the mask of samples in which the loader worked, in workers or in the loop itself.

    It is empty where there are too few of them.
    """
    work = lines.mask("worker")
    work = work if work.any() else lines.mask("waiting") & (lines.within != "")
    return work & (work.sum() >= limits.FEWEST_LINES)


def _nth(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
