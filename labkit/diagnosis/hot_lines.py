"""Where in the user's code a run's time went: sampled stacks, joined with the steps' stamps.

A sample counts as the time since the one before it in its process.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.instruments.stack import Place
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData

if TYPE_CHECKING:
    import pandas

CELL = re.compile(r"ipykernel_\d+|<ipython-input")  # in the name of a notebook cell's file
NONE = (
    "no stack was sampled after the warm-up: that takes Linux, a loop in the main thread, and the "
    "signal SIGURG"
)
LEAST_SHOWN = 0.01  # share of a row of the table
FEWEST = 30  # samples of the body (0.3 s of it) that may speak for its lines
COLLATE = "collate"  # what a loader is busy with where it puts items together
WHERE = ["file", "line", "function", "phase", "call"]  # what tells a line
MAKING = ("waiting", "worker")  # phases in which batches are made: in the loop's process, in others
TORCHS = r"(?:^|[/\\])torch[/\\](?:utils[/\\]data|storage|multiprocessing|_\w+)"  # its loader's own
PART_OF_KIND = {  # the part of a loop's body that a kind of work counts as; others are parts
    "copy": "torch",
    "io": "logging",
    "wait": "waiting",
    "library": "python",  # of older records
}


@dataclass(frozen=True)
class Line:
    """A line of the user's code, and how much of the time was spent in it."""

    file: str  # or a notebook's cell
    line: int
    function: str
    share: float  # of the loop's sampled time, 0 to 1; of workers, of that in which they worked
    phase: str  # "waiting", "body", "between" two passes over the loader, in a "worker" of it
    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    call: str = ""  # its text; of older records, what it called; "" where that is not known

    @property
    def address(self) -> str:
        """The line as people write it: "validate() (train.py:42)"; of a cell "(cell line 42)"."""
        file = "cell line " if CELL.search(self.file) else f"{Path(self.file).name}:"
        place = f"{file}{self.line}"
        return place if self.function == "<module>" else f"{self.function}() ({place})"

    @property
    def what(self) -> str:
        """What is done there, and where: "`json.dumps(row)` in log() (train.py:42)"."""
        return f"`{self.call}` in {self.address}" if self.call else self.address


class Lines(Result):
    """The lines of the user's own code that the time went to, by stacks sampled after the warm-up.

    `frame` has a row for each sample: where it was (`file`, `line`, `function`, `call`; `code` is
    its function, or "collate"), the `kind` of work and the `part` of the body that it is, `within`
    what of its loader it was, whether it is the user's `own` code there, its `phase`, the `step` of
    the loop, the `seconds` that it stands for, and its `share` (0 to 1 of the loop's sampled time,
    or of the workers') and part `of_phase`. `missing` says why there are none.
    """

    def __init__(self, run: RunData):
        """Join the samples of `run` with its steps, warm-up excluded."""
        frame = _samples(run)
        first = max(run.warmup - 1, 0)  # the last step of the warm-up
        stamps = run.stamps[first:] if run.steps else np.zeros((1, 6))
        moment = run.seconds(frame.ended_ns.to_numpy())
        asked, ready, *_, end = stamps.T
        step = np.searchsorted(asked, moment, side="right") - 1
        in_worker = frame.pid != (run.event("hello") or {}).get("pid", 0)
        waits = moment < ready[step.clip(0)]
        phases = ["worker", "between", "waiting"]
        frame["phase"] = np.select([in_worker, np.isnan(moment), waits], phases, "body")
        frame["step"] = first + step
        # The same line may prepare items of the loop's own loader while the loop waits
        frame.loc[(frame.phase == "body") & (frame.within != ""), "kind"] = "loader"
        frame["part"] = frame.kind.replace(PART_OF_KIND)
        kept = (frame.phase == "between") | (step > 0) & (moment <= end[-1])
        # not: the clock that times the items; a worker that waits for work, or sends a batch
        kept &= (frame.kind != "labkit") & ((frame.phase != "worker") | (frame.within != ""))
        frame = frame[kept].copy()
        frame["of_phase"] = _part_of(frame.seconds, frame.phase)
        frame["share"] = _part_of(frame.seconds, frame.phase == "worker")
        self.frame = frame
        self.missing = "" if len(self) else NONE

    def __len__(self) -> int:
        return len(self.frame)

    def mask(self, phase: str, *parts: str) -> pandas.Series:
        """Return the mask of the samples of a phase, or of these parts of it."""
        there = self.frame.phase == phase
        return there & self.frame.part.isin(parts) if parts else there

    def making(self, phase: str) -> pandas.Series:
        """Return the mask of a phase's samples in which code that is not torch's made batches.

        It is empty where there are too few of them.
        """
        made = self.mask(phase) & self.frame.own
        return made & (made.sum() >= limits.FEWEST_LINES)

    @cached_property
    def body(self) -> dict[str, float]:
        """The parts of the loop's body, which add up to 1; {} where too few samples fell in it."""
        body = self.frame[self.mask("body")]
        parts = body.groupby("part").of_phase.sum().sort_values(ascending=False)
        return parts.to_dict() if len(body) >= FEWEST else {}

    def rows(self, mask: pandas.Series) -> tuple[Line, ...]:
        """Return the lines that the samples of `mask` fell on, the costliest first.

        A line is of the kind of its longest sample.
        """
        samples: Any = self.frame[mask].sort_values("share", ascending=False)
        lines = samples.groupby(WHERE, sort=False, as_index=False)
        lines = lines.agg({"share": "sum", "kind": "first"})
        rows = lines.sort_values("share", ascending=False, kind="stable").to_dict("records")
        return tuple(Line(**row) for row in rows)

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line that was met, the costliest first; those of workers after the loop's."""
        in_worker = self.mask("worker")
        return self.rows(~in_worker) + self.rows(in_worker)

    def table(self) -> Table:
        """Return the costliest lines, of the loop and then of its loader's workers."""
        rows = [
            (f"{line.share:.0%}", line.phase, line.address, line.kind, line.call)
            for line in self.lines
            if line.share >= LEAST_SHOWN
        ]
        sampled = f"{len(self)} stacks sampled; shares of the loop's time, of workers of theirs"
        return Table(
            rows,
            head=("time", "phase", "where", "kind", "call"),
            left=(1, 2, 3, 4),
            foot=(self.missing or sampled,),
        )


def _part_of(seconds: pandas.Series, group: pandas.Series) -> pandas.Series:
    """Return which part each time is of all of its group."""
    return seconds / seconds.groupby(group).transform("sum").clip(1e-9)


def _samples(run: RunData) -> pandas.DataFrame:
    """Return the samples; `own` tells code that is neither torch's nor the line of the loop."""
    import pandas

    places: dict[tuple[int, str], list] = {}
    samples = []
    for event in run.all("lines"):
        pid = event["pid"]
        for number, place in event["places"].items():
            places[pid, number] = place[: len(Place._fields)]  # older records have more
        for ended_ns, weight_ns, number in event["rows"]:
            if place := places.get((pid, str(number))):
                samples.append((pid, ended_ns, weight_ns / 1e9, *place))
    names = ["pid", "ended_ns", "seconds", *Place._fields]
    frame = pandas.DataFrame(samples, columns=names).astype({"ended_ns": int, "seconds": float})
    frame["own"] = (frame.kind != "loader") & ~frame.file.str.contains(TORCHS)
    # All of collating is one; a function has what it comprehends
    function = frame.file + ":" + frame.function.str.split(".<", regex=False).str[0]
    frame["code"] = function.where(frame.within != COLLATE, COLLATE)
    return frame


sampled_lines = functools.lru_cache(maxsize=16)(Lines)  # of the ranks of a run
