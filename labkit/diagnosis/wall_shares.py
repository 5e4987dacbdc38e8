"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders have their moments in the log. All else, such as a checkpoint or a validation
over a list of tensors, is time between epochs, or in the training loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

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


class Span(NamedTuple):
    """A stretch of time."""

    began: int  # ns
    ended: int
    part: str  # that it counts as
    place: str = ""  # of its loop


@dataclass(frozen=True)
class WallShares:
    """The parts of the time from the start of a script to its end; their shares add up to 1."""

    # The longest first: `part`, `place` ("train.py:31" of a loop, else ""), `seconds`, `share`
    parts: list[dict[str, Any]]
    seconds: float

    def share(self, *parts: str) -> float:
        """Return the share of the parts of these names, 0 to 1."""
        return sum(each["share"] for each in self.parts if each["part"] in parts)

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
    trained = [span for span in loops if span.part != VALIDATION] or loops
    first, last = trained[0].began, max(span.ended for span in trained)
    start = min(loops[0].began, start or first)
    end = max(end, *(span.ended for span in loops))
    # Of spans that overlap the last one counts: so do loops, and of them the inner one
    outside = Span(start, first, BEFORE), Span(first, last, BETWEEN), Span(last, end, AFTER)
    table: Any = pandas.DataFrame([*outside, *loops])
    edges = np.unique(table[["began", "ended"]])
    owner = np.zeros(len(edges) - 1, dtype=int)  # of the stretches between them
    for number, (began, ended) in enumerate(np.searchsorted(edges, table[["began", "ended"]])):
        owner[began:ended] = number
    table["seconds"] = np.bincount(owner, np.diff(edges) / 1e9, len(table))
    table["share"] = table.seconds / table.seconds.sum()
    parts = table.groupby(["part", "place"])[["seconds", "share"]].sum()
    parts = parts[parts.seconds > 0].sort_values("share", ascending=False)
    return WallShares(parts.reset_index().to_dict("records"), float(table.seconds.sum()))


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
    spans = (Span(each["began"], each["ended"], part, place) for each in run.all("pass"))
    return [span for span in spans if span.began < span.ended]
