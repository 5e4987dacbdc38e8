"""Profiler traces of real GPUs, read live: `lk.public_trace(name)` fetches one and breaks it down.

They lie in their authors' repositories, at a pinned commit; one is accepted with the SHA-256 that
data/public_traces.json has for it, and kept in the cache. A folder may take the network's place:
$LABKIT_TRACES. Without either there are the catalogue's reference numbers, marked as such.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.analysis.trace import Breakdown, trace
from labkit.analysis.trace_file import TraceError
from labkit.analysis.trace_ranks import RankTraces
from labkit.process.folders import home
from labkit.results.result import Result, Table
from labkit.results.shipped import Listing, entries, entry
from labkit.wiring import above

FILE = "public_traces.json"
SITE = "https://raw.githubusercontent.com"
TIMEOUT_S, CHUNK, MAX_BYTES = 20, 2**16, 2**26
COLUMNS = {"kernel_busy": "kernels", "any_gpu_busy": "with copies", "comm_busy": "collectives",
           "idle": "idle", "dataloader_share": "DataLoader"}  # fmt: skip


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
    missing: str = ""  # why the trace itself could not be read

    mark = "PUBLISHED reference numbers, not read from the trace"
    HEAD = ("name", "hardware", "what it shows", "lesson", "from", "")
    row = property(lambda self: (self.name, self.hardware, self.title, self.lesson, self.repository,
                                 "here" if _copy(self) else "to be fetched"))  # fmt: skip

    def table(self) -> Table:
        """Return the reference numbers, where they are from, and how to get the trace."""
        head, rows = ("rank", "ms", *COLUMNS.values()), []
        for rank, found in self.numbers.items():
            shares = [found.get(key) for key in COLUMNS]
            shares = [None if share is None else f"{share:.1%}" for share in shares]
            rows.append((rank, f"{found['window_ms']:,.1f}", *shares))
        remedy = (
            f"connect to the network, or set LABKIT_TRACES to a folder with {self.file!r} in it"
        )
        foot = (f"{self.bottleneck}: {self.why}", f"{self.repository} @ {self.commit[:7]}",
                f"{self.missing}; to read it, {remedy}" if self.missing else "")  # fmt: skip
        return Table(rows, head, f"{self.mark}: {self.hardware}, {self.title}", foot)


def public_trace(name: str | None = None) -> Breakdown | RankTraces | PublicTrace | Listing:
    """List the public traces of real GPUs, or fetch the one called `name` and break it down.

    Returns:
        What `lk.trace` returns; its source names hardware and repository. Where the trace is
        neither here nor can be fetched: its PublicTrace, whose numbers say what they are.

    Raises:
        ValueError: An unknown name.
        TraceError: The file that came is not the one that was published. It is not kept.
    """
    if name is None:
        return Listing(PublicTrace(*each, **found) for *each, found in entries(FILE).items())
    known = PublicTrace(name, **entry(FILE, name, "trace"))
    try:
        path = _copy(known) or _fetched(known)
    except OSError as why:  # no network, among others
        return replace(known, missing=f"not fetched: {getattr(why, 'reason', why)}")
    return replace(trace(path), source=f"{name}: {known.hardware}, {known.repository}")


def _cached(known: PublicTrace) -> Path:
    return home() / "traces" / f"{known.sha256[:12]}-{known.file}"


def _copy(known: PublicTrace) -> Path | None:
    """Return the file in the user's folder or in the cache; None where there is none like it."""
    folder = os.environ.get("LABKIT_TRACES")
    found = Path(folder).rglob(known.file) if folder else ()
    for path in (*found, _cached(known)):
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in (known.sha256, *known.copies):
                return path
    return None


def _fetched(known: PublicTrace) -> Path:
    """Fetch it into the cache, with progress; nothing is left of a file that is not the one."""
    url, path = f"{SITE}/{known.repository}/{known.commit}/{known.path}", _cached(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    part, shown, got = path.with_name(f"{secrets.token_hex(4)}.part"), above("Display")(), 0
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as come, open(part, "wb") as file:
            while (chunk := come.read(CHUNK)) and got <= MAX_BYTES:
                got += file.write(chunk)
                digest.update(chunk)
                shown.line(f"fetching {known.name} from {known.repository}: {got / 1e6:.1f} MB")
        if digest.hexdigest() != known.sha256:
            raise TraceError(
                f"{url} is not the file that was published: its SHA-256 is {digest.hexdigest()}, "
                f"not {known.sha256}. Nothing was kept; try again, or get {known.file!r} from "
                "somebody you trust and set LABKIT_TRACES to its folder."
            )
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
        shown.final()
    return path
