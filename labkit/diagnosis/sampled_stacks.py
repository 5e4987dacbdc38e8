"""Sampled stacks joined with the steps' stamps: what the loop was at when each was taken.

When the loop waited and when its body ran is known exactly, so samples only divide each of the
two: their weights are scaled to what the stamps measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from labkit.bench.inner_loops import InnerLoop
from labkit.bench.kind_names import INNER_SYNC
from labkit.bench.places import Place, Where
from labkit.results.loader_records import Batches
from labkit.results.record import Event
from labkit.results.run import Run

Key = TypeVar("Key")
FEWEST = 30  # samples of a phase (0.3 s of it) that may speak for its lines
PHASES = ("waiting", "body", "between", "worker")
WAITING, BODY, BETWEEN, WORKER = range(len(PHASES))
AROUND = Place._fields.index("site")  # of a place: from here on, lines around it
PART_OF_KIND = {  # the parts of a loop's body, by the kinds of work they are made of
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "update": "optimizer",  # in the user's own code, of older records
    "sync": "sync",
    INNER_SYNC: "torch",
    "validation": "validation",
    "loader": "loader",  # another one than the loop's own
    "torch": "torch",
    "copy": "torch",
    "exchange": "torch",
    "python": "python",
    "library": "python",
    "collect": "python",
    "metric": "metrics",
    "logging": "logging",
    "io": "logging",
    "checkpoint": "logging",
    "wait": "waiting",
    "proxy": "waiting",  # of a manager's process
}
OPERATORS = ("forward", "torch", "optimizer", "sync", "copy")  # kinds of work of single operators


class SampledStacks:
    """The stacks that were sampled after the warm-up.

    There are `samples` of them; `missing` says why none. Of each, as arrays: `phase` (an index
    into `PHASES`), `step` (-1 in workers and between passes), `share` (0 to 1 of wall time, or of
    the workers' work), `moment` and `ended_ns` (when it ended, in s and by the clock), `seconds`
    (how long it stands for), `pid` and `at_s` (when, on the clock of `Batches`), `place` (an index
    into `places`), and of the place `kind` and `within`. Workers took `made_us` to make a batch,
    None if unknown.
    """

    def __init__(self, run: Run):
        """Join the samples of `run` with its steps, warm-up excluded."""
        self.places, samples = _read(run.samples_of_lines)
        pid, moment_ns, weight, place = samples.T
        moment = run.seconds(moment_ns)
        in_loop = pid == (run.event("hello") or {}).get("pid", 0)
        stamps = run.stamps if run.steps else np.zeros((1, 6))
        phase, step = _phases(moment, stamps, in_loop)
        place = _of_other_loaders(self.places, place, phase == BODY)
        kind = np.array([each.kind for each in self.places], str)[place]
        within = np.array([each.within for each in self.places], str)[place]

        stamps = stamps[max(run.warmup - 1, 0) :]  # of the last step of the warm-up, and on
        start, end = stamps[[0, -1], 5]
        keep = np.where(np.isnan(moment), in_loop, (moment > start) & (moment <= end))
        # not: the clock that times the items; a worker that waits for work, or hands it over
        keep &= (kind != "labkit") & ((phase != WORKER) | (within != ""))
        waited = np.clip(stamps[:, 1] - stamps[:, 0], 0, None)[1:]
        wall = max(end - start, 1e-9)
        share = _shares(phase, weight, keep, float(waited.sum()) / wall, wall)

        made_ns = weight[keep & (phase == WORKER)]
        enough = len(made_ns) >= FEWEST and len(waited) > 0
        self.made_us = float(made_ns.sum()) / 1e3 / len(waited) if enough else None
        self.phase = phase[keep]
        self.step = np.where(phase <= BODY, step, -1)[keep]
        self.share = share[keep]
        self.moment = moment[keep]
        self.pid = pid[keep]
        self.at_s = (moment_ns[keep] - (run.host_ns[0, 0] if run.steps else 0)) / 1e9
        self.ended_ns = moment_ns[keep]
        self.seconds = weight[keep] / 1e9
        self.place = place[keep]
        self.kind = kind[keep]
        self.within = within[keep]
        self.samples = int(keep.sum())
        self.refused = bool(run.no_lines) and not self.samples  # more steps bring none either
        nothing = run.no_lines or "no stack was sampled after the warm-up"
        self.missing = "" if self.samples else nothing

    def __len__(self) -> int:
        return self.samples

    def enough(self, phase: str) -> bool:
        """Return whether the samples of a phase suffice to speak of its lines."""
        return int(self.mask(phase).sum()) >= FEWEST

    def mask(self, phase: str) -> np.ndarray:
        """Return the mask of the samples (samples,) of a phase."""
        return self.phase == PHASES.index(phase)

    def while_made(self, batches: Batches) -> np.ndarray:
        """Return the mask of the samples (samples,) that were taken while batches were made."""
        mask = np.zeros(len(self.pid), dtype=bool)
        for pid, start, ready in zip(batches.process, batches.start, batches.ready, strict=True):
            mask |= (self.pid == pid) & (self.at_s > start) & (self.at_s <= ready)
        return mask & np.isin(self.phase, (WAITING, WORKER))

    def of_part(self, part: str) -> np.ndarray:
        """Return the mask of the samples (samples,) in a part of the body, see `PART_OF_KIND`."""
        kinds = [kind for kind, of in PART_OF_KIND.items() if of == part]
        return self.mask("body") & np.isin(self.kind, kinds)

    def in_loops(self) -> np.ndarray:
        """Return the mask of the samples (samples,) of the body in loops within the step.

        Of those in which mostly torch's operators run, over and over.
        """
        body = self.mask("body")
        shares: dict[Where, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for place, _, share in self._sampled(body):
            if place.inner:
                shares[place.inner[:3]][place.kind in OPERATORS] += share
        found = {loop for loop, (others, operators) in shares.items() if operators > others}
        there = [bool(each.inner) and each.inner[:3] in found for each in self.places]
        return body & np.array([*there, False], bool)[self.place]

    def places_of(self, mask: np.ndarray) -> list[Place]:
        """Return the places of the samples of a mask, the costliest first."""
        shares = added((place, share) for place, _, share in self._sampled(mask))
        return list(shares)

    def _sampled(self, mask: np.ndarray) -> Iterator[tuple[Place, int, float]]:
        """Yield place, phase and share of the samples of `mask`, those of one place together."""
        both = self.place[mask] * len(PHASES) + self.phase[mask]
        shares = np.bincount(both, self.share[mask])
        for each in np.unique(both):
            place, phase = divmod(int(each), len(PHASES))
            yield self.places[place], phase, float(shares[each])

    def kinds(self, phase: str) -> dict[str, float]:
        """Return the share of each kind of work in a phase, the largest first."""
        return added((place.kind, share) for place, _, share in self._sampled(self.mask(phase)))

    @property
    def body(self) -> dict[str, float]:
        """The parts of the loop's body, which add up to 1; {} where too few samples fell in it."""
        kinds = self.kinds("body") if self.enough("body") else {}
        whole = max(sum(kinds.values()), 1e-9)
        return added(
            (PART_OF_KIND.get(kind, "python"), share / whole) for kind, share in kinds.items()
        )


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
    in_main = np.where(np.isnan(moment), BETWEEN, np.where(waits, WAITING, BODY))
    return np.where(in_loop, in_main, WORKER), step


def _of_other_loaders(places: list[Place], place: np.ndarray, in_body: np.ndarray) -> np.ndarray:
    """Return the places of the samples; of those in the body, what a loader does is another one's.

    The same line may prepare items of the loop's own loader while the loop waits.
    """
    place = place.copy()
    for number in np.unique(place[in_body]):
        met = places[number]
        if (met.reads or met.within == "item") and met.kind not in ("loader", "labkit"):
            place[in_body & (place == number)] = len(places)
            places.append(met._replace(kind="loader"))
    return place


def _shares(
    phase: np.ndarray, weight: np.ndarray, keep: np.ndarray, waited: float, wall: float
) -> np.ndarray:
    """Return the share of each sample, scaled to what the stamps measured of its phase.

    `waited` is the share of the `wall` time (s) in which the loop waited for data.
    """
    share = np.zeros(len(phase))
    known = {WAITING: waited, BODY: 1 - waited, WORKER: 1.0}
    for number in range(len(PHASES)):
        mine = keep & (phase == number)
        total = weight[mine].sum()
        if total:
            share[mine] = weight[mine] * (known.get(number, total / 1e9 / wall) / total)
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
            what = described[:AROUND]
            around = [tuple(where) if where else None for where in described[AROUND:]]
            met = Place(*what, *around)
            places.append(met._replace(inner=met.inner and InnerLoop(*met.inner)))
        moment_ns, weight_ns, written = np.array(event["rows"], np.int64).reshape(-1, 3).T
        found = [numbers.get((pid, str(number)), -1) for number in written]
        table = np.column_stack([np.full(len(found), pid), moment_ns, weight_ns, found])
        tables.append(table[table[:, 3] >= 0])
    return places, np.concatenate(tables)
