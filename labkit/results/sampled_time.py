"""What the sampled stacks tell of a script's time that no loop over a loader accounts for."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.results.step_classes import body_seconds

if TYPE_CHECKING:
    from labkit.bench.places import Place
    from labkit.results.run import Run

VALIDATION = "validation"
SAVING = "checkpoints"
BETWEEN = "between epochs"
LONG = 2.0  # ordinary steps that a step takes in which something else is done as well
ALONE = 0.99  # of a line's time, in long steps: it is not met in the others
REGULAR = 0.7  # of the distances between these, that are alike
FEWEST_STEPS = 5  # from one to the next: among shorter distances chance finds some that are alike
FORWARD = 0.3  # of a line's time, in forward passes: it is a validation


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


class Sample(NamedTuple):
    """A stack in the body of a loop, or between its passes, and the time that it stands for."""

    began_ns: int
    ended_ns: int
    in_body: bool
    step: int
    is_long: bool  # the step
    place: Place


class Stacks:
    """The samples of a process's loops, and the validation in them that has no loader of its own.

    That is forward passes `outside` the training loop, or `inside`, in a line of it that is met in
    long steps at even distances alone. `facts` are fields of `WallShare`, by what a part is
    counted under.
    """

    def __init__(self, runs: Sequence[Run], passes: list[Span]):
        """`passes` are those over the loaders of validations: what is in them is known."""
        self.outside: list[Span] = []
        self.inside: list[Span] = []
        self.facts: dict[Label, dict[str, Any]] = {}
        self.spent_ns: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)  # part: lines
        own: dict[object, list[Sample]] = defaultdict(list)
        known: dict[Label, list[Sample]] = defaultdict(list)
        begun_ns = [span.began_ns for span in passes]
        for sample in _in_a_row(sample for run in runs for sample in _samples_of(run)):
            last = bisect(begun_ns, sample.ended_ns) - 1
            if last >= 0 and sample.ended_ns <= passes[last].ended_ns:
                known[passes[last].label].append(sample)
            elif sample.place.kind == "checkpoint":
                self._count(SAVING, [sample])
            else:
                own[_whose(sample)].append(sample)
        for label, samples in known.items():
            self.facts[label] = {"grad": _records_gradients(samples)}
        for samples in own.values():
            every = _steps_between(samples)
            if _validates(samples) and (every or not samples[0].in_body):
                self._add_validation(samples, every)
            elif not samples[0].in_body:
                self._count(BETWEEN, samples)

    def costliest(self, part: str) -> tuple[str, str]:
        """Return the line with most of a part's samples, and what it calls; "" without any."""
        return max(self.spent_ns[part].items(), key=lambda each: each[1], default=(("", ""), 0))[0]

    def _count(self, part: str, samples: list[Sample]) -> None:
        for each in samples:
            self.spent_ns[part][_line_of(each)] += each.ended_ns - each.began_ns

    def _add_validation(self, samples: list[Sample], every: int | None) -> None:
        lines = Counter(_line_of(each) for each in samples)
        label = Label(VALIDATION, *lines.most_common(1)[0][0])
        spans = [Span(each.began_ns, each.ended_ns, label) for each in samples]
        self.inside += spans if samples[0].in_body else []
        self.outside += [] if samples[0].in_body else spans
        self.facts[label] = {"grad": _records_gradients(samples), "every": every}


def _samples_of(run: Run) -> Iterator[Sample]:
    """Yield the samples of a run's process outside of its loader."""
    lines = run.lines
    spent_s = body_seconds(run.stamps) if run.steps else np.zeros(1)
    is_long = spent_s > LONG * np.median(spent_s)
    for phase in ("body", "between"):
        some = lines.mask(phase)
        ended_ns = lines.ended_ns[some]
        began_ns = ended_ns - (lines.seconds[some] * 1e9).astype(int)
        step = lines.step[some]
        rows = zip(began_ns, ended_ns, step, is_long[step], lines.place[some], strict=True)
        for began, ended, number, long, place in rows:
            in_body = phase == "body"
            yield Sample(int(began), int(ended), in_body, number, long, lines.places[place])


def _in_a_row(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield samples in the order of time; of those outside, each begins where the last ended."""
    last_ns = 0
    for each in sorted(samples, key=lambda sample: sample.ended_ns):
        yield each if each.in_body or not last_ns else each._replace(began_ns=last_ns)
        last_ns = each.ended_ns


def _whose(sample: Sample) -> object:
    """Return what a sample belongs to: the loop's line that began it, or a function outside."""
    place = sample.place
    if sample.in_body:
        return place.site
    return place.file, place.function, place.line if place.function == "<module>" else 0


def _line_of(sample: Sample) -> tuple[str, str]:
    """Return the line of a sample and what it calls: of the loop's own, the line that began it."""
    place = sample.place
    if sample.in_body and place.site and place.site[:2] != (place.file, place.line):
        file, line, _ = place.site
        return f"{PurePath(file).name}:{line}", f"{place.function}()"
    return f"{PurePath(place.file).name}:{place.line}", place.call


def _validates(samples: list[Sample]) -> bool:
    """Return whether samples that belong together are of a validation."""
    first = samples[0]
    if first.in_body and first.place.site is None:
        return False
    taken_ns: Counter[str] = Counter()
    for each in samples:
        taken_ns[each.place.kind] += each.ended_ns - each.began_ns
    forward_ns = taken_ns["forward"] + taken_ns["validation"]
    return not taken_ns["backward"] and forward_ns >= FORWARD * sum(taken_ns.values())


def _steps_between(samples: list[Sample]) -> int | None:
    """Return how many steps lie between the long ones that alone have samples; None otherwise."""
    taken_ns = [each.ended_ns - each.began_ns for each in samples]
    long_ns = [ns for ns, each in zip(taken_ns, samples, strict=True) if each.is_long]
    gaps = np.diff(sorted({each.step for each in samples if each.is_long}))
    if not len(gaps) or sum(long_ns) < ALONE * sum(taken_ns):
        return None
    every = int(np.median(gaps))
    is_alike = np.abs(gaps - every * np.round(gaps / max(every, 1))) <= 1  # some had no sample
    return every if every >= FEWEST_STEPS and is_alike.mean() >= REGULAR else None


def _records_gradients(samples: list[Sample]) -> bool:
    kinds = Counter(each.place.kind for each in samples)
    return kinds["forward"] > kinds["validation"]
