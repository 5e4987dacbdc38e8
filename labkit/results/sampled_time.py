"""What the sampled stacks tell of a script's time beside its training loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas

if TYPE_CHECKING:
    from labkit.results.run import Run

VALIDATION = "validation"
SAVING = "checkpoints"
BETWEEN = "between epochs"


class Label(NamedTuple):
    """What a stretch of time is counted under."""

    part: str
    place: str = ""  # of its loop, or its line: "train.py:31"
    what: str = ""  # the loader that the loop reads, or what the line calls


class Span(NamedTuple):
    """A stretch of time; of spans that overlap the last one counts.

    Of some it is known only how much of the time was `spent_ns` in the part.
    """

    began_ns: int
    ended_ns: int
    label: Label
    spent_ns: int | None = None


class Stacks:
    """The samples of a process's loops, outside of their loaders.

    `facts` are fields of `WallShare` that they tell of a validation, by what it is counted under.
    """

    def __init__(self, runs: Sequence[Run], passes: list[Span]):
        """`passes` are those over the loaders of validations, in the order of time."""
        table = pandas.concat(map(_samples_of, runs))
        last = np.searchsorted([span.began_ns for span in passes], table.ended_ns, side="right")
        is_known = table.ended_ns <= np.array([0, *(span.ended_ns for span in passes)])[last]
        self.facts: dict[Label, dict[str, Any]] = {}
        for number, span in enumerate(passes, 1):
            kinds = table.kind[is_known & (last == number)].value_counts()
            grad = bool(kinds.get("forward", 0) > kinds.get("validation", 0))
            self.facts[span.label] = {"grad": grad}
        is_save = table.kind == "checkpoint"
        is_between = ~is_save & ~is_known & table.is_between
        self.parts = {SAVING: table[is_save], BETWEEN: table[is_between]}

    def costliest(self, part: str) -> tuple[str, str]:
        """Return the line with most of a part's samples, and its text; "" without any."""
        if part not in self.parts or self.parts[part].empty:
            return "", ""
        by_line = self.parts[part].groupby(["place", "text"], as_index=False).seconds.sum()
        most = by_line.loc[by_line.seconds.idxmax()]
        return str(most.place), str(most.text)


def _samples_of(run: Run) -> pandas.DataFrame:
    """Return the samples of a run's process outside of its loader."""
    lines = run.lines
    some = lines.mask("body") | lines.mask("between")
    places = [lines.places[number] for number in lines.place[some]]
    return pandas.DataFrame(
        {
            "kind": [place.kind for place in places],
            "is_between": lines.mask("between")[some],
            "ended_ns": lines.ended_ns[some],
            "seconds": lines.seconds[some],
            "place": [f"{PurePath(place.file).name}:{place.line}" for place in places],
            "text": [place.call for place in places],
        }
    )
