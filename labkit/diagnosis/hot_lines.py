"""Where in the user's code a run's time went: sampled stacks joined with the steps' stamps.

When the loop waited and when its body ran is known exactly, so samples only divide each of the
two: their weights are scaled to what the stamps measured.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.instruments.stack import Place, Where
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.stamps.record import Event

Key = TypeVar("Key")
CELL = re.compile(r"ipykernel_\d+|<ipython-input")  # in the name of a notebook cell's file
SHOWN = 12  # rows of the table
LEAST_SHOWN = 0.005  # share of a row of it
FEWEST = 30  # samples of the body (0.3 s of it) that may speak for its lines
PHASES = ("waiting", "body", "between", "worker")
MAKING = ("waiting", "worker")  # phases in which batches are made: in the loop's process, in others
COLLATE = "collate"  # what a loader is busy with where it puts items together
TORCHS = re.compile(r"(^|[/\\])torch[/\\](utils[/\\]data|storage|multiprocessing|_\w+)")
PART_OF_KIND = {  # the parts of a loop's body, by the kinds of work of which one is no part itself
    "copy": "torch",
    "io": "logging",
    "wait": "waiting",
    "proxy": "waiting",  # of a manager's process
    # of older records
    "exchange": "torch",
    "library": "python",
}


@dataclass(frozen=True)
class Line:
    """A line of the user's code, and how much of the time was spent in it."""

    file: str  # or a notebook's cell
    line: int
    function: str
    share: float  # of wall time, 0 to 1; of workers, of the time in which they worked
    phase: str  # of `PHASES`: "between" two passes over the loader, in a "worker" of it
    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    call: str = ""  # its text; of older records, what it called; "" where that is not known
    site: Where | None = None  # where in the loop that was; None in a worker

    @property
    def place(self) -> str:
        """The file and the line: "train.py:42"; a notebook's cell has no name: "cell line 42"."""
        file = "cell line " if CELL.search(self.file) else f"{Path(self.file).name}:"
        return f"{file}{self.line}"

    @property
    def address(self) -> str:
        """The line as people write it: "validate() (train.py:42)"."""
        name = "" if self.function == "<module>" else f"{self.function}() "
        return f"{name}({self.place})"

    @property
    def what(self) -> str:
        """What is done there, and where: "`json.dumps(row)` in log() (train.py:42)"."""
        within = "" if self.function == "<module>" else " in"
        return f"`{self.call}`{within} {self.address}" if self.call else self.address

    def to_dict(self) -> dict[str, object]:
        """Return the line as JSON types."""
        return {**asdict(self), "share": round(self.share, 4)}


@dataclass(frozen=True)
class SlowCode:
    """The function, or the collate code, that takes most of making batches in a process."""

    within: str  # "item" or "collate"; "" of a sampler, or of what is no DataLoader
    lines: tuple[Line, ...]  # the costliest first
    shares: tuple[float, ...]  # 0 to 1, of the time there, that each of them takes


class Lines(Result):
    """The lines of the user's own code that the time went to, by stacks sampled after the warm-up.

    There are `samples` of them; `missing` says why none. Of each, as arrays: `phase` (of `PHASES`),
    `step` (-1 in workers and between passes), `share` (0 to 1 of wall time, or of the workers'
    work), `moment` and `ended_ns` (when it ended, in s and by the clock), `seconds` (how long it
    stands for), `place` (an index into `places`), of the place `kind` and `within`, and the `part`
    of the body that it is. Workers took `made_us` to make a batch, None if unknown.
    """

    def __init__(self, run: RunData):
        """Join the samples of `run` with its steps, warm-up excluded."""
        self.places, samples = _read(run.packed("lines"))
        pid, ended_ns, weight_ns, place = samples.T
        stamps = run.stamps if run.steps else np.zeros((1, 6))
        moment = run.seconds(ended_ns)
        in_loop = pid == (run.event("hello") or {}).get("pid", 0)
        is_between = np.isnan(moment)
        step = np.searchsorted(stamps[:, 0], np.nan_to_num(moment), side="right") - 1
        waits = moment < stamps[np.clip(step, 0, None), 1]
        phase = np.select([~in_loop, is_between, waits], ["worker", "between", "waiting"], "body")
        kind = np.array([each.kind for each in self.places], str)[place]
        within = np.array([each.within for each in self.places], str)[place]

        stamps = stamps[max(run.warmup - 1, 0) :]  # of the last step of the warm-up, and on
        start, end = stamps[[0, -1], 5]
        keep = np.where(is_between, in_loop, (moment > start) & (moment <= end))
        # not: the clock that times the items; a worker that waits for work, or hands it over
        keep &= (kind != "labkit") & ((phase != "worker") | (within != ""))
        # The same line may prepare items of the loop's own loader while the loop waits
        kind = np.where((phase == "body") & (within != ""), "loader", kind)

        self.phase = phase[keep]
        self.step = np.where(in_loop & ~is_between, step, -1)[keep]
        self.moment = moment[keep]
        self.ended_ns = ended_ns[keep]
        self.seconds = weight_ns[keep] / 1e9
        self.place = place[keep]
        self.kind = kind[keep]
        self.part = np.array([PART_OF_KIND.get(each, each) for each in self.kind.tolist()], str)
        self.within = within[keep]
        self.samples = int(keep.sum())
        waited = np.clip(stamps[:, 1] - stamps[:, 0], 0, None)[1:]
        self.share = self._shares(float(waited.sum()), max(end - start, 1e-9))
        made_s = self.seconds[self.mask("worker")]
        enough = len(made_s) >= FEWEST and len(waited) > 0
        self.made_us = float(made_s.sum()) * 1e6 / len(waited) if enough else None
        nothing = run.no_lines or "no stack was sampled after the warm-up"
        self.missing = "" if self.samples else nothing
        self._rows: dict[bytes, tuple[Line, ...]] = {}

    def _shares(self, waited_s: float, wall_s: float) -> np.ndarray:
        """Return the share of each sample, scaled to what the stamps measured of its phase."""
        waited = waited_s / wall_s
        share = self.seconds / wall_s
        for phase, whole in {"waiting": waited, "body": 1 - waited, "worker": 1.0}.items():
            there = self.mask(phase)
            share[there] *= whole / max(share[there].sum(), 1e-12)
        return share

    def __len__(self) -> int:
        return self.samples

    # -- masks of samples --------------------------------------------------------------------------

    def mask(self, phase: str) -> np.ndarray:
        """Return the mask of the samples (samples,) of a phase."""
        return self.phase == phase

    @cached_property
    def in_body(self) -> np.ndarray:
        """The mask of the samples in the loop's body; empty where too few to speak of its lines."""
        body = self.mask("body")
        return body & (body.sum() >= FEWEST)

    def of_part(self, part: str) -> np.ndarray:
        """Return the mask of the samples (samples,) in a part of the body, see `PART_OF_KIND`."""
        return self.mask("body") & (self.part == part)

    def making(self, phase: str) -> np.ndarray:
        """Return the mask of the samples of a phase in which code that is not torch's made batches.

        It is empty where there are too few of them.
        """
        theirs = [
            not TORCHS.search(each.file) and (each.file, each.line) != (each.site or ())[:2]
            for each in self.places
        ]
        found = self.mask(phase) & np.array(theirs, bool)[self.place]
        return found & (found.sum() >= limits.FEWEST_LINES)

    # -- what they add up to -----------------------------------------------------------------------

    def whole(self, phase: str) -> float:
        """Return the share of all samples of a phase; a little above 0 where there are none."""
        return max(float(self.share[self.mask(phase)].sum()), 1e-9)

    def part_of(self, phase: str, mask: np.ndarray) -> float:
        """Return the part of a phase's time, 0 to 1, that the samples of `mask` have."""
        return float(self.share[mask].sum()) / self.whole(phase)

    @cached_property
    def body(self) -> dict[str, float]:
        """The parts of the loop's body, which add up to 1; {} where too few samples fell in it."""
        parts = self.share[self.in_body] / self.whole("body")
        return _added(zip(self.part[self.in_body].tolist(), parts.tolist(), strict=True))

    def rows(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return the lines that the samples of `mask` fell on, the costliest first.

        A line is of the kind that most of its time was.
        """
        key = mask.tobytes()
        if key not in self._rows:  # a diagnosis asks 60 times
            found: dict[tuple, list[tuple[float, Place]]] = defaultdict(list)
            for phase in PHASES:
                here = mask & self.mask(phase)
                shares = np.bincount(self.place[here], self.share[here])
                for number in np.flatnonzero(shares):
                    place = self.places[number]
                    where = (place.file, place.line, place.function, phase)
                    found[where].append((float(shares[number]), place))
            lines = [_line(where, sampled) for where, sampled in found.items()]
            self._rows[key] = tuple(sorted(lines, key=lambda line: -line.share))
        return self._rows[key]

    @cached_property
    def slow_code(self) -> dict[str, SlowCode]:
        """The code with MOST_OF_LOADING of a phase of `MAKING`, by that phase."""
        groups = [_group(each) for each in self.places]
        found: dict[str, SlowCode] = {}
        for phase in MAKING:
            made = self.making(phase)
            whole = self.whole(phase)
            shares = np.bincount(self.place[made], self.share[made], len(groups)).tolist()
            costs = _added(zip(groups, shares, strict=True))
            group = next(iter(costs), ("", "", ""))
            if costs.get(group, 0.0) >= limits.MOST_OF_LOADING * whole:
                rows = self.rows(made & np.array([each == group for each in groups])[self.place])
                parts = tuple(row.share / whole for row in rows[:3])
                found[phase] = SlowCode(group[0], rows[:3], parts)
        return found

    # -- as a table --------------------------------------------------------------------------------

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line that was met, the costliest first; those of workers after the loop's."""
        in_worker = self.mask("worker")
        return self.rows(~in_worker) + self.rows(in_worker)

    def table(self) -> Table:
        """Return the costliest lines, of the loop and then of its loader's workers."""
        in_worker = self.mask("worker")
        rows = [
            (f"{line.share:.0%}", line.phase, line.address, line.kind, line.call)
            for mask in (~in_worker, in_worker)
            for line in self.rows(mask)[:SHOWN]
            if line.share >= LEAST_SHOWN
        ]
        sampled = (
            f"{self.samples} stacks sampled in this process and its loader's workers; "
            "shares of wall time, of workers their working time"
        )
        parts = [f"{share:.0%} {part}" for part, share in self.body.items() if share >= LEAST_SHOWN]
        body = f"the loop's body: {', '.join(parts)}" if parts else ""
        return Table(
            rows,
            head=("time", "phase", "where", "kind", "call"),
            left=(1, 2, 3, 4),
            foot=(body, self.missing or sampled),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the lines as JSON types."""
        return {
            "samples": self.samples,
            "missing": self.missing,
            "body": self.body,
            "lines": [line.to_dict() for line in self.lines],
        }


def _line(where: tuple[str, int, str, str], sampled: list[tuple[float, Place]]) -> Line:
    """Return a line from its place, its phase, and the places there with the share of each."""
    file, number, function, phase = where
    _, most = max(sampled, key=lambda each: each[0])
    share = sum(share for share, _ in sampled)
    return Line(file, number, function, share, phase, most.kind, most.call, most.site)


def _group(place: Place) -> tuple[str, str, str]:
    """Return what a place of making batches belongs to: all of collating, else its function."""
    if place.within == COLLATE:
        return COLLATE, "", ""
    return place.within, place.file, place.function.partition(".<")[0]  # with what it comprehends


def _added(shares: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sum of the shares of each key, the largest first."""
    total: dict[Key, float] = defaultdict(float)
    for key, share in shares:
        total[key] += share
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _read(events: Iterable[Event]) -> tuple[list[Place], np.ndarray]:
    """Return the places, and the samples (n, 4): pid, moment in ns, weight in ns, place."""
    places: list[Place] = []
    numbers: dict[tuple[int, str], int] = {}
    samples: list[tuple[int, int, int, int]] = []
    for event in events:
        pid = event["pid"]
        for number, described in event["places"].items():
            numbers[pid, number] = len(places)
            met = Place(*described[: len(Place._fields)])  # older records have more
            places.append(met._replace(site=met.site and tuple(met.site)))
        for ended_ns, weight_ns, number in event["rows"]:
            place = numbers.get((pid, str(number)))
            if place is not None:
                samples.append((pid, ended_ns, weight_ns, place))
    return places, np.array(samples, np.int64).reshape(-1, 4)


@functools.lru_cache(maxsize=16)  # of the ranks of a run
def lines_of(run: RunData) -> Lines:
    """Return where in the user's code the time of a run went."""
    return Lines(run)
