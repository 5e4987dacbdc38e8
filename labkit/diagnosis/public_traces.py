"""Profiler traces of real GPUs that others published, read live: `lk.public_trace()`.

They lie in their authors' repositories, at a pinned commit; one is accepted with the SHA-256 that
data/public_traces.json has for it, and kept in the cache. A folder may take the network's place:
$LABKIT_TRACES. Without either there are the catalogue's reference numbers, marked as such.
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

from labkit.diagnosis.rank_traces import RankTraces
from labkit.diagnosis.trace import trace
from labkit.diagnosis.trace_breakdown import Breakdown, lane_rows
from labkit.diagnosis.trace_file import TraceError
from labkit.process.folders import home
from labkit.results.result import Result, Table
from labkit.results.shipped import Listing, entries, entry
from labkit.results.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "public_traces.json"
LANES_FILE = "trace_lanes.json"  # {trace: {lane: [[start, end], ...]}}, ms: what notebook 10 draws
SITE = "https://raw.githubusercontent.com"
TIMEOUT_S = 20
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
    hardware: str
    title: str
    lesson: str
    bottleneck: str
    why: str
    repository: str
    commit: str
    path: str
    licence: str
    file: str  # its name in $LABKIT_TRACES and in the cache
    sha256: str
    copies: list[str]  # SHA-256 of copies that lack only metadata
    numbers: dict[str, dict[str, float | None]]  # of each rank; shares of `window_ms`, 0 to 1
    missing: str = ""  # why the trace itself could not be read, and the remedy

    mark = "PUBLISHED reference numbers, not read from the trace"
    HEAD = ("name", "hardware", "what it shows", "lesson", "from", "")

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells in a listing's table."""
        place = "here" if _copy(self) else "to be fetched"
        return (self.name, self.hardware, self.title, self.lesson, self.repository, place)

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
        return draw_timeline(source, lane_rows(self.lanes), self.lanes.get("steps"))

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
            shares = [found.get(key) for key in COLUMNS]
            texts = [None if share is None else f"{share:.1%}" for share in shares]
            rows.append((rank, f"{found['window_ms']:,.1f}", *texts))
        source = f"{self.repository} @ {self.commit[:7]}"
        foot = (f"{self.bottleneck}: {self.why}", source, self.missing)
        return Table(rows, head, f"{self.mark}: {self.hardware}, {self.title}", foot)


def public_trace(name: str | None = None) -> Breakdown | RankTraces | PublicTrace | Listing:
    """List the public traces of real GPUs, or fetch the one called `name` and break it down.

    Its source names hardware and repository. Where the trace is neither here nor can be fetched:
    its PublicTrace, whose numbers say what they are. ValueError: an unknown name. TraceError: the
    file that came is not the one that was published; it is not kept.
    """
    if name is None:
        return Listing(PublicTrace(name, **found) for name, found in entries(FILE).items())
    known = PublicTrace(name, **entry(FILE, name, "trace"))
    try:
        path = _copy(known) or _fetched(known)
    except (OSError, http.client.HTTPException) as why:  # no network, among others
        told = why if isinstance(why, urllib.error.HTTPError) else getattr(why, "reason", why)
        reason = printable(" ".join(f"{type(why).__name__}: {told}".split()))
        return replace(
            known,
            missing=f"The trace was not fetched ({reason}): connect to the network, or set "
            f"LABKIT_TRACES to a folder with {known.file!r} in it.",
        )
    return replace(trace(path), source=f"{name}: {known.hardware}, {known.repository}")


def _cached(known: PublicTrace) -> Path:
    return home() / "traces" / f"{known.sha256[:12]}-{known.file}"


def _copy(known: PublicTrace) -> Path | None:
    """Return the trace in the user's folder or the cache; None where no file there is it."""
    folder = os.environ.get("LABKIT_TRACES")
    found = Path(folder).rglob(known.file) if folder else ()
    for path in (*found, _cached(known)):
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in (known.sha256, *known.copies):
                return path
    return None


def _fetched(known: PublicTrace) -> Path:
    """Fetch it into the cache; a file that is not the one is not kept.

    OSError or HTTPException where it cannot be fetched, TraceError where another file came.
    """
    from labkit.view.display import Display

    url = f"{SITE}/{known.repository}/{known.commit}/{known.path}"
    shown = Display()
    shown.line(f"fetching {known.name} from {known.repository}")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except urllib.error.HTTPError as refused:
        refused.close()
        raise
    finally:
        shown.final()
    if content.lstrip()[:1] == b"<":
        raise OSError("a web page came in its place: does this network ask for a login?")
    digest = hashlib.sha256(content).hexdigest()
    if digest != known.sha256:
        raise TraceError(
            f"{url} is not the file that was published: its SHA-256 is {digest}, not "
            f"{known.sha256}. Nothing was kept; try again, or get {known.file!r} from somebody you "
            "trust and set LABKIT_TRACES to its folder."
        )
    path = _cached(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)  # one cut short by a full disk is not believed: see `_copy`
    return path
