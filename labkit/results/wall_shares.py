"""Where the whole time of a script went: before, within and between its loops. It adds up to 1.

Passes over loaders and checkpoints have their moments in the log. Validation over anything else,
such as a list of tensors, is time between epochs, with its line, or a part of the training loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.record import Event
from labkit.results.sampled_time import BETWEEN, SAVING, VALIDATION, Label, Span, costliest_lines
from labkit.results.text import percent

if TYPE_CHECKING:
    from labkit.results.run import Run

BEFORE = "before the first batch"
TRAINING = "training loop"
STOPPED = "stopped by a signal"
AFTER = "after the last epoch"
LOOP = "loop"  # where it is not known which of them trains
NAMED = 0.01  # of the time: a smaller share is not in the sentence


@dataclass(frozen=True)
class WallShare:
    """One part of the time."""

    part: str
    seconds: float
    share: float  # of all
    place: str  # of its loop, or the line that takes most of it: "train.py:31"
    what: str = ""  # the loader that the loop reads, or what that line calls
    times: int = 0  # passes over that loader
    every: int | None = None  # training steps from one to the next, where it is within that loop
    waits: float = 0.0  # share of it that waits for its own loader
    grad: bool = False  # of older records


@dataclass(frozen=True)
class WallShares:
    """The parts of the time from the start of a script to its end; their shares add up to 1."""

    parts: list[WallShare]
    seconds: float

    @classmethod
    def from_dict(cls, values: Event) -> WallShares | None:
        """Read what `to_dict` returned from a record; None where that is not sound."""
        try:
            parts = [WallShare(**part) for part in values["parts"]]
            added = sum(each.seconds + each.share + each.times + each.waits for each in parts)
            return cls(parts, float(values["seconds"])) if math.isfinite(added) else None
        except (KeyError, TypeError, ValueError):
            return None

    def share(self, part: str) -> float:
        """Return the share of the parts of that name, 0 to 1."""
        return sum(each.share for each in self.parts if each.part == part)

    @property
    def running(self) -> float:
        """The share of the time, 0 to 1, from the first batch to the last, without stops."""
        return 1 - sum(map(self.share, (BEFORE, AFTER, STOPPED)))

    def costliest(self, part: str) -> WallShare:
        """Return the largest of the parts of that name."""
        return max((each for each in self.parts if each.part == part), key=lambda each: each.share)

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


def wall_shares(
    runs: Sequence[Run], start_ns: int | None = None, end_ns: int | None = None
) -> WallShares | None:
    """Share out the time between two moments among the loops of one process, each with its run.

    Where no moments are given it is the time from the first pass to the last. None without a pass.
    """
    loops = _loops(runs)
    if not loops:
        return None
    trained = [span for span in loops if span.label.part != VALIDATION] or loops
    trained_ns = trained[0].began_ns
    over_ns = max(span.ended_ns for span in trained)
    began_ns = loops[0].began_ns
    start_ns = began_ns if start_ns is None else min(start_ns, began_ns)
    end_ns = max(end_ns or 0, *(span.ended_ns for span in loops))
    around = [
        Span(start_ns, trained_ns, Label(BEFORE)),
        Span(trained_ns, over_ns, Label(BETWEEN)),
        Span(over_ns, end_ns, Label(AFTER)),
    ]
    lines = costliest_lines(runs, [span for span in loops if span.label.part == VALIDATION])
    saves = [span for run in runs for span in _saves_of(run)]
    stops = [
        Span(each["began"], each["ended"], Label(STOPPED)) for run in runs for each in run.pauses
    ]
    spans = [*around, *loops, *saves, *stops]
    spent_ns = _shared_out(spans, start_ns, end_ns)
    facts = dict(_facts_of_passes(runs))
    whole_ns = max(1, end_ns - start_ns)
    parts = []
    for label, took_ns in spent_ns.most_common():
        place, what = label[1:] if any(label[1:]) else lines.get(label.part, ("", ""))
        part = WallShare(label.part, took_ns / 1e9, took_ns / whole_ns, place, what)
        parts.append(replace(part, **facts.get(label, {})))
    return WallShares(parts, whole_ns / 1e9)


def _loops(runs: Sequence[Run]) -> list[Span]:
    """Return every pass of the runs' loops, so that of loops within loops the inner ones count."""
    loops: list[Span] = []
    known = any(map(trains, runs))
    for run in runs:
        part = (TRAINING if trains(run) else VALIDATION) if known else LOOP
        loops += _passes_of(run, _label_of(run, part))
    return sorted(loops, key=lambda span: span.began_ns)


def _label_of(run: Run, part: str) -> Label:
    place = f"{PurePath(str(run.place[0])).name}:{run.place[1]}" if run.place else ""
    return Label(part, place, str((run.loop_code or {}).get("loader") or ""))


def _shared_out(spans: list[Span], start_ns: int, end_ns: int) -> Counter[Label]:
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
    spent_ns: Counter[Label] = Counter()
    for owner, took_ns in zip(owners, np.diff(edges).tolist(), strict=True):
        spent_ns[spans[owner].label] += took_ns
    known_ns: Counter[Label] = Counter()
    for span in spans:
        known_ns[span.label] += span.ended_ns - span.began_ns
    counted_ns = dict(spent_ns)
    for span in sums:
        own_share = counted_ns.get(span.label, 0) / max(1, known_ns[span.label])  # less inner loops
        more_ns = int(min((span.spent_ns or 0) * own_share, spent_ns[Label(BETWEEN)]))
        spent_ns[span.label] += more_ns
        spent_ns[Label(BETWEEN)] -= more_ns
    return spent_ns


def trains(run: Run) -> bool:
    """Return whether an optimizer is known to have made a step within a run's loop."""
    return any(event.get("trains") for event in run.passes_ended)


def _facts_of_passes(runs: Sequence[Run]) -> Iterable[tuple[Label, dict[str, Any]]]:
    """Yield what the passes over each validation's loader tell about it."""
    trained = [run for run in runs if trains(run) and run.steps]
    asked_ns = np.sort(np.concatenate([[], *(run.host_ns[:, 0] for run in trained)]))
    for run in runs:
        passes = run.passes_ended
        if run in trained or not passes or not run.steps:
            continue
        waited_ns = np.diff(run.host_ns[:, :2]).sum()
        spent_ns = sum(each.get("spent") or each["ended"] - each["began"] for each in passes)
        facts: dict[str, Any] = {"waits": min(1.0, float(waited_ns / max(spent_ns, 1)))}
        facts["times"] = sum(each.get("passes") or 1 for each in passes)
        steps = np.searchsorted(asked_ns, [each["began"] for each in passes])
        if any(_surrounds(outer, passes[0]) for each in trained for outer in each.passes_ended):
            facts["every"] = int(np.median(np.diff(steps))) if len(steps) > 1 else None
        yield _label_of(run, VALIDATION), facts


def _surrounds(outer: Event, inner: Event) -> bool:
    return outer["began"] < inner["began"] and inner["ended"] < outer["ended"]


def _saves_of(run: Run) -> list[Span]:
    """Return the checkpoints of a run, and the sum of those that the log leaves out."""
    saves = [Span(each["began"], each["ended"], Label(SAVING)) for each in run.saves]
    known_ns = sum(span.ended_ns - span.began_ns for span in saves)
    for last in run.saves[-1:]:
        left_out_ns = last.get("spent", known_ns) - known_ns
        saves += [Span(0, 0, Label(SAVING), left_out_ns)] if left_out_ns > 0 else []
    return saves


def _passes_of(run: Run, label: Label) -> list[Span]:
    """Return the passes of a run's loop."""
    spans = {}
    begun = run.passes_begun
    last_ns = int(run.host_ns[-1, 3]) if begun and run.steps else 0
    for event in run.passes_ended:
        spans[event["n"]] = Span(event["began"], event["ended"], label, event.get("spent"))
    for event in begun:
        # one that was killed ended with its last step
        if (event.get("began") or last_ns) < last_ns:
            spans.setdefault(event["n"], Span(event["began"], last_ns, label))
    return list(spans.values())
