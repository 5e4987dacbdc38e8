"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders have their moments in the log. All else, such as a checkpoint or a validation
over a list of tensors, is time between epochs, or in the training loop.
"""

from __future__ import annotations

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


def wall_shares(runs: Sequence[RunData], start: int = 0, end: int = 0) -> WallShares | None:
    """Share out the time of a script among the loops of one process, each with its run.

    It lasted from `start` to `end`, ns; else from the first pass to the last. None without a pass.
    """
    import pandas

    is_known = any(map(trains, runs))
    loops = sorted(span for run in runs for span in _passes(run, is_known))
    if not loops:
        return None
    trained = [span for span in loops if span[2] != VALIDATION] or loops
    first, last = trained[0][0], max(span[1] for span in trained)
    start = min(loops[0][0], start or first)
    end = max(end, *(span[1] for span in loops))
    # Of spans that overlap the last one counts: so do loops, and of them the inner one
    spans: list[Span] = [(start, first, BEFORE, ""), (first, last, BETWEEN, "")]
    spans += [(last, end, AFTER, ""), *loops]
    edges = np.unique([span[:2] for span in spans])
    owner = np.zeros(len(edges) - 1, dtype=int)  # of the stretches between them
    for number, (began, ended, *_) in enumerate(spans):
        owner[(edges[:-1] >= began) & (edges[:-1] < ended)] = number
    parts = [spans[number][2:] for number in owner]
    table: Any = pandas.DataFrame(parts, columns=["part", "place"])
    table["seconds"] = np.diff(edges) / 1e9
    table["share"] = table.seconds / table.seconds.sum()
    table = table.groupby(["part", "place"]).sum().sort_values("share", ascending=False)
    return WallShares(table.reset_index().to_dict("records"), float(table.seconds.sum()))


def shares_of(run: RunData) -> WallShares | None:
    """Return where the whole time of a watched loop or script went; None for runs of the bench."""
    known = run.event("wall")
    return WallShares(known["parts"], known["seconds"]) if known else wall_shares([run])


def trains(run: RunData) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.all("pass"))


def _passes(run: RunData, is_known: bool) -> list[Span]:
    """Return the passes of a run's loop; `is_known`: which of the script's loops train."""
    part = (TRAINING if trains(run) else VALIDATION) if is_known else LOOP
    at = run.loop.get("place")
    place = f"{PurePath(str(at[0])).name}:{at[1]}" if at else ""
    spans = [(each["began"], each["ended"]) for each in run.all("pass")]
    begun = run.all("epoch")
    if run.steps and len(begun) > len(spans):  # killed: it ended with its last step
        last = int(run.host_ns[-1, 3])
        spans.append((begun[-1].get("began") or last, last))
    return [(began, ended, part, place) for began, ended in spans if began < ended]
