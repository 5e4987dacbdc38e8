"""Where in the user's code a run's time went: the sampled stacks, joined with the steps' stamps.

When the loop waited and when its body ran is known exactly, so samples only divide each of the
two: their weights are scaled to what the stamps measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from labkit.bench.places import Place, Where
from labkit.results.record import Event
from labkit.results.result import Result, Table
from labkit.results.run import Run

Key = TypeVar("Key")
FEWEST = 30  # samples of a phase (0.3 s of it) that may speak for its lines

CELL = re.compile(r"ipykernel_\d+|<ipython-input")  # in the name of a notebook cell's file
PHASES = ("waiting", "body", "between", "worker")
AROUND = Place._fields.index("site")  # of a place: from here on, lines around it
WAITING, BODY_PHASE, BETWEEN, WORKER = range(len(PHASES))
SHOWN = 12  # rows of the table
PART_OF_KIND = {  # the parts of a loop's body, by the kinds of work they are made of
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "update": "optimizer",  # in the user's own code
    "sync": "sync",
    "validation": "validation",
    "loader": "loader",  # another one than the loop's own
    "torch": "torch",
    "copy": "torch",
    "exchange": "torch",
    "python": "python",
    "library": "python",
    "collect": "python",
    "logging": "logging",
    "io": "logging",
    "checkpoint": "logging",
    "wait": "waiting",
}
SECOND = 0.25  # of a line's time, that names a call of another kind there: `a.backward(); b.step()`
SPREAD = 0.5  # a function whose costliest line has less of it than this is named as a whole


@dataclass(frozen=True)
class Line:
    """A line of the user's code, and how much of the time was spent in it."""

    file: str  # or a notebook's cell
    line: int
    function: str
    share: float  # of wall time, 0 to 1; of workers, of the time in which they worked
    phase: str  # of `PHASES`: "between" two passes over the loader, in a "worker" of it
    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    call: str = ""  # what it called, as it stands in the source; "" where that is not known
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
        """What is done there, and where: "`json.dumps()` in log() (train.py:42)"."""
        return f"`{self.call}` in {self.address}" if self.call else self.address

    def to_dict(self) -> dict[str, object]:
        """Return the line as JSON types."""
        return {**asdict(self), "share": round(self.share, 4)}


class Lines(Result):
    """The lines of the user's own code that the time went to, the costliest first.

    There are `samples` stacks after the warm-up; `missing` says why none. Of each, as arrays:
    `phase` (an index into `PHASES`), `step` (-1 in workers and between passes), `share` (0 to 1 of
    wall time, or of the workers' work), `moment` and `seconds` (when it ended, and how long it
    stands for), `place` (an index into `places`), and of the place `kind` and `within`. Workers
    took `made_us` to make a batch, None if unknown.
    """

    def __init__(self, run: Run):
        """Join the samples of `run` with its steps, warm-up excluded."""
        self._rows: dict[bytes, tuple[Line, ...]] = {}
        self.places, samples = _read(run.samples_of_lines)
        pid, moment_ns, weight, place = samples.T
        moment = run.seconds(moment_ns)
        in_loop = pid == (run.event("hello") or {}).get("pid", 0)
        stamps = run.stamps if run.steps else np.zeros((1, 6))
        phase, step = _phases(moment, stamps, in_loop)
        place = _of_other_loaders(self.places, place, phase == BODY_PHASE)
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
        self.step = np.where(phase <= BODY_PHASE, step, -1)[keep]
        self.share = share[keep]
        self.moment = moment[keep]
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

    def of_part(self, part: str) -> np.ndarray:
        """Return the mask of the samples (samples,) in a part of the body, see `PART_OF_KIND`."""
        kinds = [kind for kind, of in PART_OF_KIND.items() if of == part]
        return self.mask("body") & np.isin(self.kind, kinds)

    def _sampled(self, mask: np.ndarray) -> Iterator[tuple[Place, int, float]]:
        """Yield place, phase and share of the samples of `mask`, those of one place together."""
        both = self.place[mask] * len(PHASES) + self.phase[mask]
        shares = np.bincount(both, self.share[mask])
        for each in np.unique(both):
            place, phase = divmod(int(each), len(PHASES))
            yield self.places[place], phase, float(shares[each])

    def kinds(self, phase: str) -> dict[str, float]:
        """Return the share of each kind of work in a phase, the largest first."""
        return _added((place.kind, share) for place, _, share in self._sampled(self.mask(phase)))

    @property
    def body(self) -> dict[str, float]:
        """The parts of the loop's body, which add up to 1; {} where too few samples fell in it."""
        kinds = self.kinds("body") if self.enough("body") else {}
        whole = max(sum(kinds.values()), 1e-9)
        return _added(
            (PART_OF_KIND.get(kind, "python"), share / whole) for kind, share in kinds.items()
        )

    def rows(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return the lines that the samples of `mask` fell on, the costliest first."""
        key = mask.tobytes()
        if key in self._rows:  # a diagnosis asks 60 times
            return self._rows[key]
        found: dict[tuple[str, int, str, int], dict[Place, float]] = defaultdict(dict)
        for place, phase, share in self._sampled(mask):
            line = (place.file, place.line, place.function, phase)
            place = place._replace(within="", reads=None)  # wherever in a worker it is one line
            found[line][place] = found[line].get(place, 0.0) + share
        lines = [_line_of(shares, PHASES[phase]) for (*_, phase), shares in found.items()]
        lines.sort(key=lambda line: -line.share)
        self._rows[key] = tuple(lines)
        return self._rows[key]

    def around(self, mask: np.ndarray, what: str) -> tuple[Line, ...]:
        """Return the lines around the samples of `mask`, the costliest first.

        `what`: the "site" in the loop itself, or the line that "reads" a DataLoader.
        """
        found = [
            (where, share, place.kind)
            for place, _, share in self._sampled(mask)
            if (where := getattr(place, what))
        ]
        kinds = {where: kind for where, _, kind in reversed(found)}  # of the first of each
        return tuple(
            Line(*where, share=share, phase="body", kind=kinds[where])
            for where, share in _added((where, share) for where, share, _ in found).items()
        )

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line that was met, the costliest first; those of workers after the loop's."""
        return self.rows(self.phase < WORKER) + self.rows(self.phase == WORKER)

    def worst(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return where the samples of `mask` went: a line, or the function they are spread over.

        The first has the share of the whole function where no line has half of it; then come
        single lines.
        """
        rows = self.rows(mask)
        functions = defaultdict(list)
        for line in rows:
            functions[line.file, line.function, line.phase].append(line)
        if not rows:
            return ()
        most = max(functions.values(), key=lambda lines: sum(line.share for line in lines))
        whole = sum(line.share for line in most)
        if rows[0].share >= SPREAD * whole or most[0].function == "<module>":
            return rows[:3]
        return (replace(most[0], share=whole, call=""), *rows[:2])

    def table(self) -> Table:
        """Return the costliest lines, of the loop and then of its loader's workers."""
        shown = self.rows(self.phase < WORKER)[:SHOWN] + self.rows(self.phase == WORKER)[:SHOWN]
        rows = [
            (f"{line.share:.0%}", line.phase, line.address, line.kind, line.call)
            for line in shown
            if line.share >= 0.005
        ]
        sampled = (
            f"{self.samples} stacks sampled in this process and its loader's workers; "
            "shares of wall time, of workers their working time"
        )
        parts = [f"{share:.0%} {part}" for part, share in self.body.items() if share >= 0.005]
        body = f"the loop's body: {', '.join(parts)}" if parts else ""
        return Table(
            rows,
            head=("time", "phase", "where", "kind", "call"),
            left=(1, 2, 3, 4),
            foot=tuple(filter(None, (body, self.missing or sampled))),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the lines as JSON types."""
        return {
            "samples": self.samples,
            "missing": self.missing,
            "body": self.body,
            "lines": [line.to_dict() for line in self.lines],
        }


def _added(shares: Iterable[tuple[Key, float]]) -> dict[Key, float]:
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
    in_main = np.where(np.isnan(moment), BETWEEN, np.where(waits, WAITING, BODY_PHASE))
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
    known = {WAITING: waited, BODY_PHASE: 1 - waited, WORKER: 1.0}
    for number in range(len(PHASES)):
        mine = keep & (phase == number)
        total = weight[mine].sum()
        if total:
            share[mine] = weight[mine] * (known.get(number, total / 1e9 / wall) / total)
    return share


def _line_of(shares: dict[Place, float], phase: str) -> Line:
    """Return one line of code from the places in it, and their shares.

    It has the kind and the site of most of its time, and the calls of each kind with much of it.
    """
    total = sum(shares.values())
    ordered = _added(shares.items())
    calls: dict[str, str] = {}
    named = set()
    for place, share in ordered.items():
        is_much = not calls or share >= SECOND * total
        if place.call and place.kind not in named and is_much:
            named.add(place.kind)
            calls.setdefault(place.call.partition("(")[0], place.call)
    most = next(iter(ordered))
    return Line(
        file=most.file,
        line=most.line,
        function=most.function,
        share=total,
        phase=phase,
        kind=most.kind,
        call=", ".join(calls.values()),
        site=most.site,
    )


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
            places.append(Place(*what, *around))
        moment_ns, weight_ns, written = np.array(event["rows"], np.int64).reshape(-1, 3).T
        found = [numbers.get((pid, str(number)), -1) for number in written]
        table = np.column_stack([np.full(len(found), pid), moment_ns, weight_ns, found])
        tables.append(table[table[:, 3] >= 0])
    return places, np.concatenate(tables)
