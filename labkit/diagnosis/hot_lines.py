"""Where in the user's code a run's time went: the lines that its sampled stacks were at."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.sampled_stacks import SampledStacks, added
from labkit.instruments.places import Place, Where
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData

CELL = re.compile(r"ipykernel_\d+|<ipython-input")  # in the name of a notebook cell's file
SHOWN = 12  # rows of the table
SPREAD = 0.5  # a function whose costliest line has less of it than this is named as a whole
COLLATE = "collate"  # what a loader is busy with where it puts items together
MAKING = ("waiting", "worker")  # phases in which batches are made: in the loop's process, in others
TORCHS = re.compile(r"(^|[/\\])torch[/\\](utils[/\\]data|storage|multiprocessing|_\w+)")


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
    phase: str  # one of `MAKING`: where it runs
    lines: tuple[Line, ...]  # the costliest first
    shares: tuple[float, ...]  # 0 to 1, of the time there, that each of them takes


class Lines(SampledStacks, Result):
    """The lines of the user's own code that the time went to, the costliest first."""

    def __init__(self, run: RunData):
        super().__init__(run)
        self._rows: dict[bytes, tuple[Line, ...]] = {}

    def rows(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return the lines that the samples of `mask` fell on, the costliest first."""
        key = mask.tobytes()
        if key not in self._rows:  # a diagnosis asks 60 times
            self._rows[key] = self._lines_of(mask)
        return self._rows[key]

    def sites(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return where in the loop itself the samples of `mask` were, the costliest line first."""
        return self._lines_of(mask, at_site=True)

    def _lines_of(self, mask: np.ndarray, at_site: bool = False) -> tuple[Line, ...]:
        """Return the lines of the samples of `mask`, or their sites: each with a share.

        A line is of the kind that most of its time was.
        """
        found: dict[tuple, list[tuple[float, Place]]] = defaultdict(list)
        for place, phase, share in self._sampled(mask):
            where = place.site if at_site else (place.file, place.line, place.function)
            if where:
                found[(*where, phase)].append((share, place))
        lines = []
        for (file, number, function, phase), sampled in found.items():
            share = sum(share for share, _ in sampled)
            most = max(sampled, key=itemgetter(0))[1]
            call, site = ("", None) if at_site else (most.call, most.site)
            lines.append(Line(file, number, function, share, phase, most.kind, call, site))
        return tuple(sorted(lines, key=lambda line: -line.share))

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

    @cached_property
    def slow_code(self) -> dict[str, SlowCode]:
        """The code with most of the time in which batches are made, by phase, where one has it."""
        found = {phase: self._slow_code(phase) for phase in MAKING}
        return {phase: code for phase, code in found.items() if code}

    def _slow_code(self, phase: str) -> SlowCode | None:
        made = self.making(phase)
        whole = self.whole(phase)
        groups = added((_group(place), share) for place, _, share in self._sampled(made))
        for group, share in [*groups.items()][:1]:
            if share >= limits.MOST_OF_LOADING * whole:
                here = np.array([_group(each) == group for each in self.places])[self.place]
                rows = self.rows(made & here)[:3]
                return SlowCode(group[0], phase, rows, tuple(row.share / whole for row in rows))
        return None

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line that was met, the costliest first; those of workers after the loop's."""
        in_worker = self.mask("worker")
        return self.rows(~in_worker) + self.rows(in_worker)

    def worst(self, mask: np.ndarray) -> tuple[Line, ...]:
        """Return where the samples of `mask` went: a line, or the function they are spread over.

        The first has the share of the whole function where no line has half of it; then come
        single lines.
        """
        rows = self.rows(mask)
        if not rows:
            return ()
        functions = added(((line.file, line.function, line.phase), line.share) for line in rows)
        function, whole = next(iter(functions.items()))
        first = next(each for each in rows if (each.file, each.function, each.phase) == function)
        if rows[0].share >= SPREAD * whole or first.function == "<module>":
            return rows[:3]
        return (replace(first, share=whole, call=""), *rows[:2])

    def table(self) -> Table:
        """Return the costliest lines, of the loop and then of its loader's workers."""
        in_worker = self.mask("worker")
        shown = self.rows(~in_worker)[:SHOWN] + self.rows(in_worker)[:SHOWN]
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


def _group(place: Place) -> tuple[str, str, str]:
    """Return what a place of making batches belongs to: all of collating, else its function."""
    if place.within == COLLATE:
        return COLLATE, "", ""
    return place.within, place.file, place.function.partition(".<")[0]  # with what it comprehends


@functools.lru_cache(maxsize=16)  # of the ranks of a run
def lines_of(run: RunData) -> Lines:
    """Return where in the user's code the time of a run went."""
    return Lines(run)
