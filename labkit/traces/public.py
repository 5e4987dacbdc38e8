"""The catalogue of profiler traces of real GPUs that others published: `lk.public_trace()`.

data/public_traces.json says of each where it lies, and reference numbers: these are shown, marked
as such, where the trace itself cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.public_files import PublicFile
from labkit.results.result import Result, Table
from labkit.results.shipped import entries
from labkit.traces.breakdown import share_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "public_traces.json"
LANES_FILE = "trace_lanes.json"  # {trace: {lane: [[start, end], ...]}}, ms: what notebook 10 draws
COLUMNS = {
    "kernel_busy": "kernels",
    "any_gpu_busy": "with copies",
    "comm_busy": "collectives",
    "idle": "idle",
    "dataloader_share": "DataLoader",
}


@dataclass(frozen=True, repr=False)
class PublicTrace(Result, PublicFile):
    """What the catalogue says of a trace: reference numbers, found by others' tools than this."""

    name: str
    hardware: str
    title: str
    lesson: str
    bottleneck: str
    why: str
    licence: str
    numbers: dict[str, dict[str, float | None]]  # of each rank; shares of `window_ms`, 0 to 1
    missing: str = ""  # why the trace itself could not be read, and the remedy

    mark = "PUBLISHED reference numbers, not read from the trace"

    @property
    def lanes(self) -> dict[str, np.ndarray]:
        """A stored excerpt of the trace's lanes, (n, 2) starts and ends in ms; {} without one."""
        stored = entries(LANES_FILE).get(self.name, {})
        return {name: np.array(each, dtype=float) for name, each in stored.items()}

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw the stored excerpt, whatever part was asked for; without one, the numbers."""
        if not self.lanes:
            return self.plot()
        from labkit.view.analysis_figures import draw_timeline

        source = f"{self.name}: STORED EXCERPT, no download"
        return draw_timeline(source, self.lanes)

    def plot(self) -> Figure:
        """Draw the reference numbers as bars."""
        from labkit.view.analysis_figures import draw_reference

        return draw_reference(self)

    def compare(self, after: PublicTrace) -> PublicTrace:
        """Return the reference numbers of both, since neither trace could be read."""
        numbers = {self.name: self.numbers["all"], after.name: after.numbers["all"]}
        return replace(self, numbers=numbers)

    def table(self) -> Table:
        """Return the reference numbers, where they are from, and how to get the trace."""
        head = ("rank", "ms", *COLUMNS.values())
        rows = []
        for rank, found in self.numbers.items():
            rows.append((rank, f"{found['window_ms']:,.1f}", *share_cells(found, COLUMNS)))
        source = f"{self.repository} @ {self.commit[:7]}"
        foot = (f"{self.bottleneck}: {self.why}", source, self.missing)
        return Table(rows, head, f"{self.mark}: {self.hardware}, {self.title}", foot)


class Catalogue(Result, tuple):
    """All of them, as one table."""

    def table(self) -> Table:
        """Return a row for each."""
        rows = []
        for each in self:
            place = "here" if each.here else "to be fetched"
            rows.append((each.name, each.hardware, each.title, each.lesson, each.repository, place))
        head = ("name", "hardware", "what it shows", "lesson", "from", "")
        return Table(rows, head, left=range(len(head)))


def catalogue() -> Catalogue:
    """Return all of them."""
    return Catalogue(PublicTrace(name=name, **found) for name, found in entries(FILE).items())


def known_trace(name: str) -> PublicTrace:
    """Return the one of that name; ValueError says which there are."""
    known = {each.name: each for each in catalogue()}
    if name not in known:
        raise ValueError(f"Unknown trace {name!r}; available: {', '.join(known)}.")
    return known[name]
