"""What a watched loop shows beyond its stamps: its lines, its passes, and how its steps change."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Line, Lines

IN_WORDS = {
    "python": ("Python", "Vectorise it, do it in tensor operations, or take it out of the loop."),
    "logging": (
        "logging and files",
        "Do it in every 50th step or less, buffered and without fsync, or in a thread of its own.",
    ),
    "waiting": (
        "waiting: for a sleep, a lock, a network or another program",
        "Do it in a thread of its own, or between epochs.",
    ),
    "validation": (
        "passes without gradients (validation, a policy's rollouts, a teacher)",
        "Validate less often, on fewer, larger batches; roll out several environments at once.",
    ),
}
ITEMS = ("__getitem__", "__getitems__", "__iter__", "__next__")  # where all of it is, anyway


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
    body: np.ndarray = field(repr=False)  # (steps, IN_WORDS) sampled share that is no training
    sampled: np.ndarray = field(repr=False)  # (steps,) and of all
    spent: np.ndarray = field(repr=False)  # (steps,) s, of all steps: how long their bodies took
    drift: Drift | None
    restart: float  # spent on the first batches of later passes, for which workers start anew
    passes: int
    cold: float  # by which the first pass was slower than the later ones
    first_pass: int  # its steps
    _groups: dict[str, tuple] = field(default_factory=dict, repr=False)  # once a diagnosis

    def shares(self, all_of_it: float, *groups: float) -> dict[str, float]:
        """Return the part (0 to 1) of a body that each group takes, from their summed shares."""
        if not self.lines.enough("body") or all_of_it <= 0:
            return {}
        return {
            name: float(share / all_of_it) for name, share in zip(IN_WORDS, groups, strict=True)
        }

    def of_group(self, group: str) -> tuple[str, str, tuple[Line, ...]]:
        """Return the cause, where and when it is, in words, and the lines of a group's work."""
        if group not in self._groups:
            self._groups[group] = _of_group(self, group)
        return self._groups[group]

    @cached_property
    def loading(self) -> tuple[str, str, str, tuple[Line, ...]] | None:
        """What stands out in preparing items: the last four results of `why_it_waits`."""
        return _of_loading(self.lines)


def of_run(run: Any) -> Loop | None:
    """Return what the loop of a watched run shows; None of other runs."""
    if not run.watched or run.steps < limits.MIN_STEPS:
        return None
    found, first, stamps = run.lines, max(run.warmup, 1), run.stamps
    measured = (found.phase == 1) & (found.step >= first)

    def per_step(mask: np.ndarray) -> np.ndarray:
        some = measured & mask
        return np.bincount(found.step[some] - first, found.share[some], run.steps - first)

    body = np.stack([per_step(found.of_part(part)) for part in IN_WORDS], axis=1)
    wall = max(float(stamps[-1, 5] - stamps[first - 1, 5]), 1e-9)
    spent = stamps[:, 5] - stamps[:, 1]  # (steps,) s, in the body
    begun = {0, *(event["step"] for event in run._series["epoch"])}
    starts = sorted(start for start in begun if start < run.steps)
    return Loop(
        found, body, per_step(measured), spent,
        _drift(spent[first:], first, wall, found),
        *_passes(stamps, starts, wall, bool(run.pipeline.to_dict().get("num_workers"))),
    )  # fmt: skip


def _drift(spent: np.ndarray, first: int, wall: float, found: Lines) -> Drift | None:
    if len(spent) < 5 * limits.MIN_STEPS:
        return None
    fifths = np.array_split(np.arange(len(spent)), 5)
    middle = np.array([np.median(spent[part]) for part in fifths])
    growth = float(middle[-1] / max(middle[0], 1e-9))
    rises = (np.diff(middle) > -0.1 * middle[:-1]).all() and (np.diff(middle) > 0).sum() >= 3
    share = float(np.clip(spent - middle[0], 0, None).sum() / wall)
    if not rises or growth < limits.DRIFT or share < limits.WORTH_NAMING["host"] / 2:
        return None
    by_place = []  # (places,) the share of each, early and late
    for part in (fifths[0], fifths[-1]):
        some = (found.phase == 1) & np.isin(found.step, part + first)
        by_place.append(np.bincount(found.place[some], found.share[some], len(found.places) + 1))
    grew = np.argmax(by_place[1] - by_place[0])
    return Drift(growth, share, (found.phase == 1) & (found.place == grew))


def _passes(
    stamps: np.ndarray, starts: list[int], wall: float, workers: bool
) -> tuple[float, int, float, int]:
    """Return the last four fields of a `Loop`; the first of the `starts` is step 0."""
    wait, step = stamps[:, 1] - stamps[:, 0], np.diff(stamps[:, 5], prepend=0.0)
    ends, restart, cold = [*starts[1:], len(stamps)], 0.0, 0.0
    if workers:
        more = wait[starts[1:]] - np.median(wait)
        restart = float(np.clip(more, 0, None).sum() / wall)
    if len(starts) > 1 and ends[0] >= limits.MIN_STEPS:
        first, *others = (np.median(step[start + 1 : end]) if end - start > 1 else 0.0
                          for start, end in zip(starts, ends, strict=True))  # fmt: skip
        rest = float(np.median(others))
        if rest > 0 and first > limits.COLD * rest:
            cold = float((first - rest) * ends[0] / wall)
    return restart, len(starts), cold, ends[0]


# -- what the rules of the diagnosis make of it ----------------------------------------------------


def in_the_body(loop: Loop, group: str, lost: float) -> tuple[str, str, str, tuple[Line, ...]]:
    """Return the cause, what was seen, the remedy and the lines of a group's loss."""
    words, change = IN_WORDS[group]
    cause, where, lines = loop.of_group(group)
    seen = f"{lost:.0%} of the time the body of the loop is not training but {words}{where}"
    return cause, seen, change, lines


def _of_group(loop: Loop, group: str) -> tuple[str, str, tuple[Line, ...]]:
    mask = loop.lines.of_part(group)
    lines = loop.lines.worst(mask)
    when = stalls(loop, mask)
    cause = group
    end = ""
    if when and (group != "validation" or "every" in when):
        cause = "periodic"
        end = f", {when}"
        lines = (*loop.lines.sites(mask)[:1], *lines)  # it is known by the line that begins it
    if not lines:
        return cause, end, lines
    part = lines[0].share / max(float(loop.lines.share[loop.lines.phase == 1].sum()), 1e-9)
    return cause, f": {part:.0%} of the body is in {lines[0].what}{end}", lines


def synchronises(loop: Loop) -> tuple[float, tuple[Line, ...]] | None:
    """Return the part of the body in which the host waits for the device, and where; or None."""
    part = loop.lines.body.get("sync", 0.0)
    enough = part >= limits.WORTH_NAMING["launch"]
    return (part, loop.lines.worst(loop.lines.of_part("sync"))) if enough else None


def stalls(loop: Loop, mask: np.ndarray) -> str:
    """Say when the work of the masked samples comes, where it makes steps stall; else ""."""
    usual = float(np.median(loop.spent))
    step, share = loop.lines.step[mask], loop.lines.share[mask]
    long = loop.spent[step] > limits.STALL * usual
    steps = np.unique(step[long])
    if share[long].sum() < limits.IN_STALLS * share.sum() or len(steps) < 2:
        return ""
    gaps = np.diff(steps)
    every = int(np.median(gaps))
    missed = np.abs(gaps - every * np.round(gaps / every)) <= 1  # some may have had no sample
    if len(gaps) > 1 and every > 2 and missed.mean() >= limits.REGULAR:
        return f"in every {_nth(every)} step"
    few = len(steps) <= limits.FEW_STALLS * len(loop.spent)
    return f"in {len(steps)} single steps" if few else ""


def why_it_waits(loop: Loop, lost: float) -> tuple[str, str, str, tuple[Line, ...]] | None:
    """Return what waiting for data comes from, as far as lines and passes show: as above."""
    lines, worth = loop.lines, max(lost, 1e-9) / 2
    if loop.restart >= worth:
        seen = f"{loop.restart:.0%} of the time goes to the first batches of {loop.passes - 1} "
        seen += "later passes, for which the workers start anew"
        at_loop = lines.worst(lines.mask("waiting"))[:1]
        return "workers_restart", seen, "Set persistent_workers=True.", at_loop
    if loop.cold >= worth:
        seen = f"the first pass took longer than the later ones, by {loop.cold:.0%} of the time"
        change = "Build what it builds, and read what it reads, once before training."
        early = (lines.step < loop.first_pass) | (lines.phase == 3)
        return "cold_start", seen, change, lines.worst(_loading(lines) & early)[:1]
    return loop.loading


def _of_loading(lines: Lines) -> tuple[str, str, str, tuple[Line, ...]] | None:
    work = _loading(lines)
    whole = float(lines.share[work].sum())
    if whole <= 0:
        return None
    collates = work & (lines.within == "collate")
    part = float(lines.share[collates].sum()) / whole
    if part >= limits.MOST_OF_LOADING:
        found = lines.worst(collates)
        seen = f"{part:.0%} of what the loader does is collating: {found[0].what}"
        change = "Let collate_fn stack arrays of one size, and do the rest per item or offline."
        return "collate", seen, change, found
    seen, found = _stands_out(lines, work & ~collates, whole)
    change = "Make that line cheaper: do it once and keep the result, or before training."
    return ("item", seen, change, found) if found else None


def _stands_out(lines: Lines, mask: np.ndarray, whole: float) -> tuple[str, tuple[Line, ...]]:
    """Return the line, helper function or Python code with most of the `whole`, and say so."""
    rows, most, least = lines.rows(mask), lines.worst(mask), limits.MOST_OF_LOADING * whole
    python = [line for line in rows if line.kind == "python"]
    if rows and rows[0].share >= least:
        found = rows[:3]
    elif most and most[0].share >= least and not most[0].function.endswith(ITEMS):
        found = most
    elif python and sum(line.share for line in python) >= least:
        found = tuple(python[:3])
    else:
        return "", ()
    part = found[0].share / max(whole, 1e-9)
    return f"{part:.0%} of preparing an item is {found[0].what}", found


def loads(run: Any) -> str:
    """Say what most of preparing an item of `run` is, with the line; "" where none stands out."""
    work = _loading(run.lines)
    whole = float(run.lines.share[work].sum())
    return _stands_out(run.lines, work, whole)[0]


def costliest_of_loading(lines: Lines) -> tuple[Line, ...]:
    """Return the costliest lines of preparing items, where enough of it was sampled."""
    return lines.rows(_loading(lines))[:3]


def _loading(lines: Lines) -> np.ndarray:
    """Return the mask of samples in which the loader worked, in workers or in the loop itself.

    It is empty where there are too few of them.
    """
    work = lines.mask("worker")
    work = work if work.any() else lines.mask("waiting") & (lines.within != "")
    return work & (work.sum() >= limits.FEWEST_LINES)


def _nth(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
