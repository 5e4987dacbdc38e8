"""Where the whole time of a script went: before, within and between its loops. It adds up to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from labkit.results.result import percent

if TYPE_CHECKING:
    import pandas

    from labkit.results.run import Run

BEFORE, BETWEEN, AFTER = "before the first batch", "between epochs", "after the last epoch"
TRAINING, VALIDATION, SAVING = "training loop", "validation", "checkpoints"
LOOP = "loop"  # where it is not known which of them trains
NAMED = 0.01  # of the time: a smaller share is not in the sentence


@dataclass(frozen=True)
class WallShare:
    """One part of the time."""

    part: str
    seconds: float
    share: float  # of all
    place: str  # of a loop: "train.py:31"


@dataclass(frozen=True)
class WallShares:
    """The parts of the time from the start of a script to its end; their shares add up to 1."""

    parts: list[WallShare]
    seconds: float

    @property
    def rows(self) -> pandas.DataFrame:
        """A row a part."""
        import pandas

        rows = [asdict(part) for part in self.parts]
        return pandas.DataFrame(rows, columns=["part", "place", "seconds", "share"])

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each.share for each in self.parts if each.part == part)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON types."""
        return {"seconds": self.seconds, "parts": [asdict(part) for part in self.parts]}

    def __str__(self) -> str:
        named = [
            f"{each.part}{f' ({each.place})' if each.place else ''} {percent(each.share)}"
            for each in self.parts
            if each.share >= NAMED
        ]
        return f"{self.seconds:,.1f} s in all: {', '.join(named)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.rows.to_html(index=False)


@dataclass(frozen=True)
class _Span:
    """A stretch of time in a part; of spans that overlap the one that began last counts."""

    began_ns: int
    ended_ns: int
    part: str
    place: str


def wall_shares(
    runs: Sequence[Run], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    known = any(trains(run) for run in runs)
    spans = []
    for run in runs:
        part = (TRAINING if trains(run) else VALIDATION) if known else LOOP
        spans += _spans_of(run, part)
    loops = [span for span in spans if span.part != SAVING]
    if not loops:
        return None
    first = min(span.began_ns for span in loops)
    last = max(span.ended_ns for span in loops)
    start_ns = first if start_ns is None else min(start_ns, first)
    end_ns = last if end_ns is None else max(end_ns, last)
    trained = [span for span in loops if span.part == TRAINING] or loops
    first_batch = min(span.began_ns for span in trained)
    over = max(span.ended_ns for span in trained)
    moments = {start_ns, end_ns, first_batch, over}
    for span in spans:
        moments |= {span.began_ns, span.ended_ns}
    edges = sorted(moment for moment in moments if start_ns <= moment <= end_ns)
    spent: dict[tuple[str, str], int] = {}
    for begin, end in zip(edges, edges[1:], strict=False):
        inside = [span for span in spans if span.began_ns <= begin and end <= span.ended_ns]
        if inside:
            owner = max(inside, key=lambda span: (span.part == SAVING, span.began_ns))
            key = owner.part, owner.place
        else:
            key = (BEFORE if begin < first_batch else AFTER if begin >= over else BETWEEN), ""
        spent[key] = spent.get(key, 0) + end - begin
    total = max(1, end_ns - start_ns)
    parts = [
        WallShare(part, ns / 1e9, ns / total, place) for (part, place), ns in spent.items() if ns
    ]
    return WallShares(sorted(parts, key=lambda each: -each.share), total / 1e9)


def trains(run: Run) -> bool:
    """Return whether an optimizer made a step within a run's loop; of `lk.watch` nobody looks."""
    return any(event.get("trains") for event in run.passes)


def _spans_of(run: Run, part: str) -> list[_Span]:
    """Return the passes of a run's loop and the checkpoints that its process wrote."""
    place = run.event("spec").get("watched", {}).get("place") or []
    name = f"{PurePath(str(place[0])).name}:{place[1]}" if len(place) == 2 else ""
    passes = {event["n"]: event for event in run.passes}
    spans = [_Span(event["began"], event["ended"], part, name) for event in passes.values()]
    killed = {event["n"]: event["began"] for event in reversed(run.epochs) if event.get("began")}
    for number, began_ns in killed.items():
        if number not in passes and run.steps:
            spans.append(_Span(began_ns, int(run.host_ns[-1, 3]), part, name))
    spans += [_Span(each["began"], each["ended"], SAVING, "") for each in run.saves]
    return spans


def stored(values: Any) -> WallShares | None:
    """Return the shares that a record holds as JSON types; None where they are not sound."""
    try:
        parts = [WallShare(**part) for part in values["parts"]]
        return WallShares(parts, float(values["seconds"]))
    except (KeyError, TypeError, ValueError):
        return None
