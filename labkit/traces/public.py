"""Profiler traces of real GPUs that others published: `lk.public_trace()`.

data/public_traces.json says where each lies, at a pinned commit, and has reference numbers: these
are shown, marked as such, where the trace itself cannot be read. A file is accepted by its SHA-256
alone and kept in the cache; a folder may take the network's place: $LABKIT_TRACES.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.process.folders import part
from labkit.results.result import Result, Table
from labkit.results.templates import entries
from labkit.stamps.folder_rights import private
from labkit.stamps.plain_file import opened
from labkit.text import printable
from labkit.traces.breakdown import Breakdown, share_cells
from labkit.traces.file import TraceError
from labkit.traces.ranks import RankTraces
from labkit.traces.read import trace

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FILE = "public_traces.json"
LANES_FILE = "trace_lanes.json"  # {trace: {lane: [[start, end], ...]}}, ms: what notebook 10 draws
SITE = "https://raw.githubusercontent.com"
TIMEOUT_S = 20
MAX_BYTES = 256 * 2**20  # ten times the largest: of more, the SHA-256 is another
LISTED = ["name", "hardware", "title", "lesson", "repository"]
COLUMNS = {
    "kernel_busy": "kernels",
    "any_gpu_busy": "with copies",
    "comm_busy": "collectives",
    "idle": "idle",
    "dataloader_share": "DataLoader",
}


@dataclass(frozen=True, repr=False)
class PublicTrace(Result):
    """What the catalogue says of a trace: reference numbers, found by others' tools than this."""

    name: str
    repository: str  # at `SITE`
    commit: str
    path: str
    file: str  # its name in $LABKIT_TRACES and in the cache
    sha256: str
    copies: list[str]  # SHA-256 of copies that lack only metadata
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
    def _cached(self) -> Path:
        return part("traces") / f"{self.sha256[:12]}-{self.file}"

    @property
    def here(self) -> Path | None:
        """The file in the user's folder or the cache; None where no file there is it."""
        folder = os.environ.get("LABKIT_TRACES")
        found = Path(folder).rglob(self.file) if folder else ()
        for path in (*found, self._cached):
            with contextlib.suppress(OSError), opened(path) as file:
                digest = hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
                if digest in (self.sha256, *self.copies):
                    return path
        return None

    def fetched(self) -> Path:
        """Fetch it into the cache; OSError where that fails.

        TraceError where another file came, which is not kept.
        """
        url = f"{SITE}/{self.repository}/{self.commit}/{self.path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(MAX_BYTES)
        if content.lstrip()[:1] == b"<":
            raise OSError("a web page came in its place: does this network ask for a login?")
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise TraceError(
                f"{url} is not the file that was published: its SHA-256 is {digest}, not "
                f"{self.sha256}. Nothing was kept; try again, or get {self.file!r} from somebody "
                "you trust and set LABKIT_TRACES to its folder."
            )
        path = self._cached
        with open(path, "wb", opener=private) as file:  # cut short, it is not believed: see `here`
            file.write(content)
        return path

    @property
    def lanes(self) -> dict[str, np.ndarray]:
        """A stored excerpt of the trace's lanes, (n, 2) starts and ends in ms; {} without one."""
        stored = entries(LANES_FILE).get(self.name, {})
        return {name: np.array(each, dtype=float) for name, each in stored.items()}

    def timeline(
        self, start_ms: float | None = None, end_ms: float | None = None
    ) -> Figure | Table:
        """Draw the stored excerpt, whatever part was asked for; without one, the numbers."""
        if not self.lanes:
            return self.table()
        from labkit.view.analysis_figures import draw_timeline

        return draw_timeline(f"{self.name}: STORED EXCERPT, no download", self.lanes)

    def plot(self) -> Table:
        """Return the table of reference numbers: there is no trace to draw."""
        return self.table()

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


def public_trace(
    name: str | None = None,
) -> Breakdown | RankTraces | PublicTrace | pandas.DataFrame:
    """List the public traces of real GPUs, or fetch the one called `name` and break it down.

    Its source names hardware and repository. Where the trace is neither here nor can be fetched:
    its PublicTrace, whose numbers say what they are. ValueError: an unknown name. TraceError: the
    file that came is not the one that was published; it is not kept.
    """
    known = {each: PublicTrace(name=each, **found) for each, found in entries(FILE).items()}
    if name is None:
        import pandas

        listed = pandas.DataFrame([*known.values()], columns=LISTED)
        return listed.assign(here=[each.here is not None for each in known.values()])
    if name not in known:
        raise ValueError(f"Unknown trace {name!r}; available: {', '.join(known)}.")
    wanted = known[name]
    try:
        path = wanted.here or wanted.fetched()
    except (OSError, http.client.HTTPException) as why:  # no network, among others
        reason = printable(" ".join(f"{type(why).__name__}: {why}".split()))
        missing = (
            f"The trace was not fetched ({reason}): connect to the network, or set "
            f"LABKIT_TRACES to a folder with {wanted.file!r} in it."
        )
        return replace(wanted, missing=missing)
    return replace(trace(path), source=f"{name}: {wanted.hardware}, {wanted.repository}")
