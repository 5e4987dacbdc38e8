"""Where the whole time of a script went: before, within and between its loops. It adds up to 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.record import Event
from labkit.results.text import percent

if TYPE_CHECKING:
    from labkit.results.run import Run

BEFORE = "before the first batch"
TRAINING = "training loop"
VALIDATION = "validation"
SAVING = "checkpoints"
STOPPED = "stopped by a signal"
BETWEEN = "between epochs"
AFTER = "after the last epoch"
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

    @classmethod
    def from_dict(cls, values: Event) -> WallShares | None:
        """Read what `to_dict` returned from a record; None where that is not sound."""
        try:
            parts = []
            for part in values["parts"]:
                seconds = float(part["seconds"])
                share = float(part["share"])
                parts.append(WallShare(str(part["part"]), seconds, share, str(part["place"])))
            return cls(parts, float(values["seconds"]))
        except (KeyError, TypeError, ValueError):
            return None

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each.share for each in self.parts if each.part == part)

    def to_dict(self) -> dict[str, object]:
        """Return them as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        named = []
        for each in self.parts:
            if each.share >= NAMED:
                place = f" ({each.place})" if each.place else ""
                named.append(f"{each.part}{place} {percent(each.share)}")
        return f"{self.seconds:,.1f} s in all: {', '.join(named)}"

    __repr__ = __str__


@dataclass(frozen=True)
class _Span:
    """A stretch of time in a part; of spans that overlap the last one counts.

    Of some it is known only how much of the time was `spent_ns` in the part.
    """

    began_ns: int
    ended_ns: int
    part: str
    place: str = ""
    spent_ns: int | None = None


def wall_shares(
    runs: Sequence[Run], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    loops = _loops(runs)
    if not loops:
        return None
    trained = [span for span in loops if span.part != VALIDATION] or loops
    trained_ns = trained[0].began_ns
    over_ns = max(span.ended_ns for span in trained)
    began_ns = loops[0].began_ns
    start_ns = began_ns if start_ns is None else min(start_ns, began_ns)
    end_ns = max(end_ns or 0, *(span.ended_ns for span in loops))
    around = [
        _Span(start_ns, trained_ns, BEFORE),
        _Span(trained_ns, over_ns, BETWEEN),
        _Span(over_ns, end_ns, AFTER),
    ]
    saves = [span for run in runs for span in _saves_of(run)]
    stops = [_Span(each["began"], each["ended"], STOPPED) for run in runs for each in run.pauses]
    parts = _shared_out([*around, *loops, *saves, *stops], start_ns, end_ns)
    return WallShares(parts, max(1, end_ns - start_ns) / 1e9)


def _loops(runs: Sequence[Run]) -> list[_Span]:
    """Return every pass of the runs' loops, so that of loops within loops the inner ones count."""
    loops: list[_Span] = []
    known = any(map(trains, runs))
    for run in runs:
        part = (TRAINING if trains(run) else VALIDATION) if known else LOOP
        loops += _passes_of(run, part)
    return sorted(loops, key=lambda span: span.began_ns)


def _shared_out(spans: list[_Span], start_ns: int, end_ns: int) -> list[WallShare]:
    """Share out the time between two moments; where spans overlap, the last of them counts.

    What spans sum up comes out of the time between the others, shared as theirs was.
    """
    sums = [span for span in spans if span.spent_ns is not None]
    spans = [span for span in spans if span.spent_ns is None]
    moments = [moment for span in spans for moment in (span.began_ns, span.ended_ns)]
    edges = np.unique(np.clip(moments, start_ns, end_ns))
    owners = np.zeros(len(edges) - 1, dtype=int)
    for number, span in enumerate(spans):
        begin, end = np.searchsorted(edges, [span.began_ns, span.ended_ns])
        owners[begin:end] = number
    spent_ns: Counter[tuple[str, str]] = Counter()
    for owner, took_ns in zip(owners, np.diff(edges).tolist(), strict=True):
        spent_ns[spans[owner].part, spans[owner].place] += took_ns
    known_ns: Counter[tuple[str, str]] = Counter()
    for span in spans:
        known_ns[span.part, span.place] += span.ended_ns - span.began_ns
    counted_ns = dict(spent_ns)
    for span in sums:
        whose = span.part, span.place
        own_share = counted_ns.get(whose, 0) / max(1, known_ns[whose])  # less loops within them
        more_ns = int(min((span.spent_ns or 0) * own_share, spent_ns[BETWEEN, ""]))
        spent_ns[whose] += more_ns
        spent_ns[BETWEEN, ""] -= more_ns
    return [
        WallShare(part, took_ns / 1e9, took_ns / (end_ns - start_ns), place)
        for (part, place), took_ns in spent_ns.most_common()
    ]


def trains(run: Run) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.passes_ended)


def _saves_of(run: Run) -> list[_Span]:
    """Return the checkpoints of a run, and the sum of those that the log leaves out."""
    saves = [_Span(each["began"], each["ended"], SAVING) for each in run.saves]
    known_ns = sum(span.ended_ns - span.began_ns for span in saves)
    for last in run.saves[-1:]:
        left_out_ns = last.get("spent", known_ns) - known_ns
        saves += [_Span(0, 0, SAVING, spent_ns=left_out_ns)] if left_out_ns > 0 else []
    return saves


def _passes_of(run: Run, part: str) -> list[_Span]:
    """Return the passes of a run's loop."""
    place = ""
    match run.place:
        case [file, line]:
            place = f"{PurePath(str(file)).name}:{line}"
    spans = {}
    begun = run.passes_begun
    last_ns = int(run.host_ns[-1, 3]) if begun and run.steps else 0
    for event in run.passes_ended:
        spent_ns = event.get("spent")
        spans[event["n"]] = _Span(event["began"], event["ended"], part, place, spent_ns)
    for event in begun:
        # one that was killed ended with its last step
        if (event.get("began") or last_ns) < last_ns:
            spans.setdefault(event["n"], _Span(event["began"], last_ns, part, place))
    return list(spans.values())
