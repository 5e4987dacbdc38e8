"""What the sampled stacks tell of a script's time beside its training loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas

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


def costliest_lines(runs: Sequence[Run], passes: list[Span]) -> dict[str, list[str]]:
    """Return the line with most of the samples of a part that has no loader, and its text.

    `passes` are those over the loaders of validations, in the order of time: known already.
    """
    import pandas

    table = pandas.concat(map(_samples_of, runs))
    last = np.searchsorted([span.began_ns for span in passes], table.ended_ns, side="right")
    is_known = table.ended_ns <= np.array([0, *(span.ended_ns for span in passes)])[last]
    table = table[~is_known & (table.part != "")]
    spent = table.groupby(["part", "place", "text"]).seconds.sum().sort_values()
    return {part: line for part, *line in spent.index}


def _samples_of(run: Run) -> pandas.DataFrame:
    """Return the samples of a run's process outside of its loader."""
    import pandas

    lines = run.lines
    some = lines.mask("body") | lines.mask("between")
    places = [lines.places[number] for number in lines.place[some]]
    is_save = [place.kind == "checkpoint" for place in places]
    return pandas.DataFrame(
        {
            "part": np.where(is_save, SAVING, np.where(lines.mask("between")[some], BETWEEN, "")),
            "ended_ns": lines.ended_ns[some],
            "seconds": lines.seconds[some],
            "place": [f"{PurePath(place.file).name}:{place.line}" for place in places],
            "text": [place.call for place in places],
        }
    )
