"""Sampled stacks joined with the steps' stamps: what the loop was at when each was taken.

When the loop waited and when its body ran is known exactly, so samples only divide each of the
two: their weights are scaled to what the stamps measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.instruments.inner_loops import InnerLoop
from labkit.instruments.places import Place
from labkit.results.run_data import RunData
from labkit.stamps.record import Event

if TYPE_CHECKING:
    import pandas

Key = TypeVar("Key")
FEWEST = 30  # samples of the body (0.3 s of it) that may speak for its lines
PHASES = ("waiting", "body", "between", "worker")
PART_OF_KIND = {  # the parts of a loop's body, by the kinds of work of which one is no part itself
    "copy": "torch",
    "exchange": "torch",
    "library": "python",
    "io": "logging",
    "checkpoint": "logging",
    "wait": "waiting",
    "proxy": "waiting",  # of a manager's process
    # of older records
    "update": "optimizer",
    "inner_sync": "torch",
    "validation": "forward",
    "collect": "python",
    "metric": "python",
}
OPERATORS = ("forward", "torch", "optimizer", "sync", "copy")  # kinds of work of single operators


class SampledStacks:
    """The stacks that were sampled after the warm-up.

    There are `samples` of them; `missing` says why none. Of each, as arrays: `phase` (of `PHASES`),
    `step` (-1 in workers and between passes), `share` (0 to 1 of wall time, or of the workers'
    work), `moment` and `ended_ns` (when it ended, in s and by the clock), `seconds` (how long it
    stands for), `pid` and `at_s` (when, on the clock of a loader's batches), `place` (an index into
    `places`), of the place `kind` and `within`, and the `part` of the body that it is. Workers took
    `made_us` to make a batch, None if unknown.
    """

    def __init__(self, run: RunData):
        """Join the samples of `run` with its steps, warm-up excluded."""
        self.places, samples = _read(run.samples_of_lines)
        pid, moment_ns, weight, place = samples.T
        moment = run.seconds(moment_ns)
        in_loop = pid == (run.event("hello") or {}).get("pid", 0)
        stamps = run.stamps if run.steps else np.zeros((1, 6))
        phase, step = _phases(moment, stamps, in_loop)
        kind = np.array([each.kind for each in self.places], str)[place]
        within = np.array([each.within for each in self.places], str)[place]

        stamps = stamps[max(run.warmup - 1, 0) :]  # of the last step of the warm-up, and on
        start, end = stamps[[0, -1], 5]
        keep = np.where(np.isnan(moment), in_loop, (moment > start) & (moment <= end))
        # not: the clock that times the items; a worker that waits for work, or hands it over
        keep &= (kind != "labkit") & ((phase != "worker") | (within != ""))
        waited = np.clip(stamps[:, 1] - stamps[:, 0], 0, None)[1:]
        wall = max(end - start, 1e-9)
        share = _shares(phase, weight, keep, float(waited.sum()) / wall, wall)

        made_ns = weight[keep & (phase == "worker")]
        enough = len(made_ns) >= FEWEST and len(waited) > 0
        self.made_us = float(made_ns.sum()) / 1e3 / len(waited) if enough else None
        self.phase = phase[keep]
        self.step = step[keep]
        self.share = share[keep]
        self.moment = moment[keep]
        self.pid = pid[keep]
        self.at_s = (moment_ns[keep] - (run.host_ns[0, 0] if run.steps else 0)) / 1e9
        self.ended_ns = moment_ns[keep]
        self.seconds = weight[keep] / 1e9
        self.place = place[keep]
        # The same line may prepare items of the loop's own loader while the loop waits
        is_others = (phase == "body") & (within != "")
        self.kind = np.where(is_others, "loader", kind)[keep]
        self.part = np.array([PART_OF_KIND.get(each, each) for each in self.kind.tolist()], str)
        self.within = within[keep]
        self.samples = int(keep.sum())
        self.refused = bool(run.no_lines) and not self.samples  # more steps bring none either
        nothing = run.no_lines or "no stack was sampled after the warm-up"
        self.missing = "" if self.samples else nothing

    def __len__(self) -> int:
        return self.samples

    def mask(self, phase: str) -> np.ndarray:
        """Return the mask of the samples (samples,) of a phase."""
        return self.phase == phase

    @cached_property
    def in_body(self) -> np.ndarray:
        """The mask of the samples in the loop's body; empty where too few to speak of its lines."""
        body = self.mask("body")
        return body & (body.sum() >= FEWEST)

    def while_made(self, batches: pandas.DataFrame) -> np.ndarray:
        """Return the mask of the samples (samples,) that were taken while batches were made."""
        mask = np.zeros(len(self.pid), dtype=bool)
        for pid, start, ready in zip(batches.process, batches.start, batches.ready, strict=True):
            mask |= (self.pid == pid) & (self.at_s > start) & (self.at_s <= ready)
        return mask & (self.mask("waiting") | self.mask("worker"))

    def of_part(self, part: str) -> np.ndarray:
        """Return the mask of the samples (samples,) in a part of the body, see `PART_OF_KIND`."""
        return self.mask("body") & (self.part == part)

    def whole(self, phase: str) -> float:
        """Return the share of all samples of a phase; a little above 0 where there are none."""
        return max(float(self.share[self.mask(phase)].sum()), 1e-9)

    def part_of(self, phase: str, mask: np.ndarray) -> float:
        """Return the part of a phase's time, 0 to 1, that the samples of `mask` have."""
        return float(self.share[mask].sum()) / self.whole(phase)

    @cached_property
    def in_loops(self) -> np.ndarray:
        """The mask of the samples in a loop within the step that runs operators one by one.

        It is empty where they take less than PART_OF_BODY of the body.
        """
        inner = np.array([bool(each.inner) for each in self.places], bool)[self.place]
        there = self.in_body & inner & np.isin(self.kind, OPERATORS)
        return there & (self.part_of("body", there) >= limits.PART_OF_BODY)

    def costliest(self, mask: np.ndarray) -> Place:
        """Return the place with the largest share of the samples of a mask."""
        return self.places[int(np.bincount(self.place[mask], self.share[mask]).argmax())]

    def _sampled(self, mask: np.ndarray) -> Iterator[tuple[Place, str, float]]:
        """Yield place, phase and share of the samples of `mask`, those of one place together."""
        for phase in PHASES:
            here = mask & self.mask(phase)
            shares = np.bincount(self.place[here], self.share[here])
            for place in np.flatnonzero(shares):
                yield self.places[place], phase, float(shares[place])

    @cached_property
    def body(self) -> dict[str, float]:
        """The parts of the loop's body, which add up to 1; {} where too few samples fell in it."""
        parts = self.share[self.in_body] / self.whole("body")
        return added(zip(self.part[self.in_body].tolist(), parts.tolist(), strict=True))


def added(shares: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sum of the shares of each key, the largest first."""
    total: dict[Key, float] = defaultdict(float)
    for key, share in shares:
        total[key] += share
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _phases(
    moment: np.ndarray, stamps: np.ndarray, in_loop: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the phase of each sample, and the step that was going on; a `moment` (s) each."""
    step = np.searchsorted(stamps[:, 0], np.nan_to_num(moment), side="right") - 1
    waits = moment < stamps[np.clip(step, 0, None), 1]
    cases = [~in_loop, np.isnan(moment), waits]
    phase = np.select(cases, ["worker", "between", "waiting"], "body")
    return phase, np.where(in_loop & ~np.isnan(moment), step, -1)


def _shares(
    phase: np.ndarray, weight: np.ndarray, keep: np.ndarray, waited: float, wall: float
) -> np.ndarray:
    """Return the share of each sample, scaled to what the stamps measured of its phase.

    `waited` is the share of the `wall` time (s) in which the loop waited for data.
    """
    share = np.zeros(len(phase))
    known = {"waiting": waited, "body": 1 - waited, "worker": 1.0}
    for name in PHASES:
        mine = keep & (phase == name)
        total = weight[mine].sum()
        if total:
            share[mine] = weight[mine] * (known.get(name, total / 1e9 / wall) / total)
    return share


def _read(events: Iterable[Event]) -> tuple[list[Place], np.ndarray]:
    """Return the places, and the samples (n, 4): pid, moment in ns, weight in ns, place."""
    places: list[Place] = []
    numbers: dict[tuple[int, str], int] = {}
    tables = [np.empty((0, 4), np.int64)]
    for event in events:
        pid = event["pid"]
        for number, described in event["places"].items():
            numbers[pid, number] = len(places)
            met = Place(*described)
            site = met.site and tuple(met.site)
            places.append(met._replace(site=site, inner=met.inner and InnerLoop(*met.inner)))
        moment_ns, weight_ns, written = np.array(event["rows"], np.int64).reshape(-1, 3).T
        found = [numbers.get((pid, str(number)), -1) for number in written]
        table = np.column_stack([np.full(len(found), pid), moment_ns, weight_ns, found])
        tables.append(table[table[:, 3] >= 0])
    return places, np.concatenate(tables)
