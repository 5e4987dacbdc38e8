"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders and stops by a signal have their moments in the log. A validation
over anything else, such as a list of tensors, is time between epochs, or in the training loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from labkit.diagnosis.hot_lines import lines_of
from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.text import percent

BEFORE = "before the first batch"
TRAINING = "training loop"
VALIDATION = "validation"
BETWEEN = "between epochs"
AFTER = "after the last epoch"
LOOP = "loop"  # where it is not known which of them trains
NAMED = 0.01  # of the time: a smaller share is not in the sentence
# A stretch of time: when it began and ended, ns; the part that it counts as; the place of its loop
Span = tuple[int, int, str, str]


@dataclass(frozen=True)
class WallShare:
    """One part of the time."""

    part: str
    seconds: float = 0.0
    share: float = 0.0  # of all
    place: str = ""  # of its loop, or the line that takes most of it: "train.py:31"
    call: str = ""  # what that line calls


@dataclass(frozen=True)
class WallShares:
    """The parts of the time from the start of a script to its end; their shares add up to 1."""

    parts: list[WallShare]  # the longest first
    seconds: float

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each.share for each in self.parts if each.part == part)

    @property
    def running(self) -> float:
        """The share of the time, 0 to 1, from the first batch to the last, without stops."""
        return 1 - sum(map(self.share, (BEFORE, AFTER)))

    def costliest(self, part: str) -> WallShare:
        """Return the longest of the parts of that name."""
        return next(each for each in self.parts if each.part == part)

    def __str__(self) -> str:
        named = (
            f"{each.part}{f' ({each.place})' if each.place else ''} {percent(each.share)}"
            for each in self.parts
            if each.share >= NAMED
        )
        return f"{self.seconds:,.1f} s in all: {', '.join(named)}"


def wall_shares(
    runs: Sequence[RunData], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    is_known = any(map(trains, runs))
    # In order of their start: of spans that overlap the last one counts, so of loops the inner one
    loops = sorted(span for run in runs for span in _passes(run, is_known))
    if not loops:
        return None
    trained = [span for span in loops if span[2] != VALIDATION] or loops
    first, last = trained[0][0], max(span[1] for span in trained)
    start = min(loops[0][0], first if start_ns is None else start_ns)
    end = max(end_ns or 0, *(span[1] for span in loops))
    spans: list[Span] = [(first, last, BETWEEN, ""), (start, first, BEFORE, "")]
    spans += [(last, end, AFTER, ""), *loops]
    moments = np.clip([span[:2] for span in spans], start, end)
    edges = np.unique(moments)
    owner = np.zeros(len(edges) - 1, dtype=int)  # of the stretches between them
    for number, (begins, ends) in enumerate(np.searchsorted(edges, moments)):
        owner[begins:ends] = number
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for span, spent_s in zip(spans, np.bincount(owner, np.diff(edges) / 1e9), strict=False):
        seconds[span[2:]] += float(spent_s)
    whole_s = max((end - start) / 1e9, 1e-9)
    part_from = np.array([*(spans[each][2] for each in owner), ""])  # each edge on
    parts = []
    for (part, place), spent_s in sorted(seconds.items(), key=lambda each: -each[1]):
        call = ""
        if part == BETWEEN:
            place, call = _costliest_line(runs, edges, part_from == part)
        if spent_s:
            parts.append(WallShare(part, spent_s, spent_s / whole_s, place, call))
    return WallShares(parts, whole_s)


def shares_of(run: RunData) -> WallShares | None:
    """Return where the whole time of a watched loop or script went; None for runs of the bench."""
    known = run.event("wall")
    if known is None or not known.get("parts"):
        return wall_shares([run])
    parts = [WallShare(**fields_in(WallShare, part)) for part in known["parts"]]
    return WallShares(parts, known["seconds"])


def trains(run: RunData) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.passes_ended)


def _passes(run: RunData, is_known: bool) -> list[Span]:
    """Return the passes of a run's loop; `is_known`: which of the script's loops train."""
    part = (TRAINING if trains(run) else VALIDATION) if is_known else LOOP
    place = f"{PurePath(str(run.place[0])).name}:{run.place[1]}" if run.place else ""
    # One that was killed ended with its last step
    last = int(run.host_ns[-1, 3]) if run.steps else 0
    begun = {each["n"]: (each["began"], last) for each in run.passes_begun if each.get("began")}
    ended = {each["n"]: (each["began"], each["ended"]) for each in run.passes_ended}
    spans = (begun | ended).values()
    return [(begins, ends, part, place) for begins, ends in spans if begins < ends]


def _costliest_line(
    runs: Sequence[RunData], edges: np.ndarray, is_part: np.ndarray
) -> tuple[str, str]:
    """Return the place of the line with most of a part's time, and what it calls; "" of none."""
    rows = []
    for run in runs:
        lines = lines_of(run)
        there = is_part[np.searchsorted(edges, lines.frame.ended_ns) - 1]
        rows += lines.rows(there & ~lines.mask("worker"))[:1]
    most = max(rows, key=lambda line: line.share, default=None)
    return (most.place, most.call) if most else ("", "")
