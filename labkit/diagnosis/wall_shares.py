"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders, checkpoints and stops by a signal have their moments in the log. A validation
over anything else, such as a list of tensors, is time between epochs, or in the training loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from labkit.diagnosis.hot_lines import lines_of
from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.stamps.record import Event
from labkit.text import percent

BEFORE = "before the first batch"
TRAINING = "training loop"
VALIDATION = "validation"
SAVING = "checkpoints"
BETWEEN = "between epochs"
AFTER = "after the last epoch"
LOOP = "loop"  # where it is not known which of them trains
NAMED = 0.01  # of the time: a smaller share is not in the sentence


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

    parts: list[WallShare]
    seconds: float

    @classmethod
    def from_dict(cls, values: Event) -> WallShares | None:
        """Read what `to_dict` returned from a record's event; None of an empty one."""
        parts = [WallShare(**fields_in(WallShare, part)) for part in values.get("parts", ())]
        return cls(parts, values["seconds"]) if parts else None

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each.share for each in self.parts if each.part == part)

    @property
    def running(self) -> float:
        """The share of the time, 0 to 1, from the first batch to the last, without stops."""
        return 1 - sum(map(self.share, (BEFORE, AFTER)))

    def costliest(self, part: str) -> WallShare:
        """Return the largest of the parts of that name."""
        return max((each for each in self.parts if each.part == part), key=lambda each: each.share)

    def __str__(self) -> str:
        named = []
        for each in self.parts:
            if each.share >= NAMED:
                place = f" ({each.place})" if each.place else ""
                named.append(f"{each.part}{place} {percent(each.share)}")
        return f"{self.seconds:,.1f} s in all: {', '.join(named)}"

    __repr__ = __str__


class Span(NamedTuple):
    """A stretch of time, and what it counts as; of spans that overlap the last one counts."""

    began_ns: int
    ended_ns: int
    part: str
    place: str = ""


def wall_shares(
    runs: Sequence[RunData], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    known = any(map(trains, runs))
    # In order of their start, so that of loops within loops the inner ones count
    loops = sorted(span for run in runs for span in _passes(run, known))
    if not loops:
        return None
    trained = [span for span in loops if span.part != VALIDATION] or loops
    first_ns = trained[0].began_ns
    last_ns = max(span.ended_ns for span in trained)
    began_ns = min(loops[0].began_ns, first_ns if start_ns is None else start_ns)
    ended_ns = max(end_ns or 0, *(span.ended_ns for span in loops))
    spans = [
        Span(first_ns, last_ns, BETWEEN),
        Span(began_ns, first_ns, BEFORE),
        Span(last_ns, ended_ns, AFTER),
        *loops,
        *(Span(each["began"], each["ended"], SAVING) for run in runs for each in run.saves),
    ]
    edges = np.unique(np.clip([span[:2] for span in spans], began_ns, ended_ns))
    owners = np.zeros(len(edges) - 1, dtype=int)  # of the stretches between them
    for number, span in enumerate(spans):
        owners[slice(*np.searchsorted(edges, span[:2]))] = number
    spent_ns: Counter[tuple[str, str]] = Counter()
    for owner, took_ns in zip(owners, np.diff(edges).tolist(), strict=True):
        spent_ns[spans[owner].part, spans[owner].place] += took_ns
    whole_ns = max(1, ended_ns - began_ns)
    parts = []
    for (part, place), took_ns in spent_ns.most_common():
        call = ""
        if part in (SAVING, BETWEEN):
            is_part = [spans[owner].part == part for owner in owners]
            place, call = _costliest_line(runs, edges, np.array([*is_part, False]))
        parts.append(WallShare(part, took_ns / 1e9, took_ns / whole_ns, place, call))
    return WallShares(parts, whole_ns / 1e9)


def shares_of(run: RunData) -> WallShares | None:
    """Return where the whole time of a watched loop or script went; None for runs of the bench."""
    return WallShares.from_dict(run.event("wall") or {}) or wall_shares([run])


def trains(run: RunData) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.passes_ended)


def _passes(run: RunData, known: bool) -> list[Span]:
    """Return the passes of a run's loop; `known`: which of the script's loops train."""
    part = (TRAINING if trains(run) else VALIDATION) if known else LOOP
    place = f"{PurePath(str(run.place[0])).name}:{run.place[1]}" if run.place else ""
    moments = {each["n"]: (each["began"], each["ended"]) for each in run.passes_ended}
    # One that was killed ended with its last step
    last_ns = int(run.host_ns[-1, 3]) if run.passes_begun and run.steps else 0
    for event in run.passes_begun:
        if (event.get("began") or last_ns) < last_ns:
            moments.setdefault(event["n"], (event["began"], last_ns))
    return [Span(*between, part, place) for between in moments.values()]


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
