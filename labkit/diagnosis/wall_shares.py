"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders have their moments in the log. All else, such as a checkpoint or a validation
over a list of tensors, is time between epochs, or in the training loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from labkit.results.run_data import RunData
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
class WallShares:
    """The parts of the time from the start of a script to its end; their shares add up to 1."""

    # The longest first: `part`, `place` ("train.py:31" of a loop, else ""), `seconds`, `share`
    parts: list[dict[str, Any]]
    seconds: float

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each["share"] for each in self.parts if each["part"] == part)

    def place(self, part: str) -> str:
        """Return where the longest of the parts of that name is; "" where it has no place."""
        return next(each["place"] for each in self.parts if each["part"] == part)

    @property
    def running(self) -> float:
        """The share of the time, 0 to 1, from the first batch to the last, without stops."""
        return 1 - self.share(BEFORE) - self.share(AFTER)

    def __str__(self) -> str:
        named = [
            f"{each['part']} {each['place']} {percent(each['share'])}".replace("  ", " ")
            for each in self.parts
            if each["share"] >= NAMED
        ]
        return f"{self.seconds:,.1f} s in all: {', '.join(named)}"


def wall_shares(
    runs: Sequence[RunData], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    is_known = any(map(trains, runs))
    loops = sorted(span for run in runs for span in _passes(run, is_known))
    if not loops:
        return None
    trained = [span for span in loops if span[2] != VALIDATION] or loops
    first, last = trained[0][0], max(span[1] for span in trained)
    start = min(loops[0][0], start_ns or first)
    end = max(end_ns or 0, *(span[1] for span in loops))
    around = [(start, first, BEFORE, ""), (first, last, BETWEEN, ""), (last, end, AFTER, "")]
    # Of spans that overlap the last one counts: so do loops, and of them the inner one
    spans: list[Span] = [*around, *loops]
    edges = np.unique([span[:2] for span in spans])
    owner = np.zeros(len(edges) - 1, dtype=int)  # of the stretches between them
    for number, (began, ended, *_) in enumerate(spans):
        owner[(edges[:-1] >= began) & (edges[:-1] < ended)] = number
    seconds: Counter[tuple[str, str]] = Counter()
    for number, stretch_ns in zip(owner, np.diff(edges), strict=True):
        seconds[spans[number][2:]] += stretch_ns / 1e9
    whole_s = max((end - start) / 1e9, 1e-9)
    parts = [
        {"part": part, "place": place, "seconds": spent_s, "share": spent_s / whole_s}
        for (part, place), spent_s in seconds.most_common()
    ]
    return WallShares(parts, whole_s)


def shares_of(run: RunData) -> WallShares | None:
    """Return where the whole time of a watched loop or script went; None for runs of the bench."""
    known = run.event("wall")
    return WallShares(known["parts"], known["seconds"]) if known else wall_shares([run])


def trains(run: RunData) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.passes_ended)


def _passes(run: RunData, is_known: bool) -> list[Span]:
    """Return the passes of a run's loop; `is_known`: which of the script's loops train."""
    part = (TRAINING if trains(run) else VALIDATION) if is_known else LOOP
    place = f"{PurePath(str(run.place[0])).name}:{run.place[1]}" if run.place else ""
    spans = [(each["began"], each["ended"]) for each in run.passes_ended]
    if run.steps and len(run.passes_begun) > len(spans):  # killed: it ended with its last step
        last = int(run.host_ns[-1, 3])
        spans.append((run.passes_begun[-1].get("began") or last, last))
    return [(began, ended, part, place) for began, ended in spans if began < ended]
