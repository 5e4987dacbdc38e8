"""Profiler traces of real GPUs that others published: `lk.public_trace()`.

data/public_traces.json says where each lies, at a pinned commit. A file is accepted by its SHA-256
alone and kept in the cache; a folder may take the network's place: $LABKIT_TRACES. Where the trace
itself cannot be read, what was read from it before is in data/stored_traces.json: of each rank what
`Breakdown.to_record` returned, and an excerpt of its lanes.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.knobs import check_names
from labkit.process.folders import part
from labkit.results.templates import entries
from labkit.stamps.folder_rights import private
from labkit.stamps.plain_file import open_plain
from labkit.text import printable
from labkit.traces.breakdown import Breakdown, RankTraces
from labkit.traces.file import TraceError
from labkit.traces.read import breakdown_of, trace

if TYPE_CHECKING:
    import pandas

FILE = "public_traces.json"
STORED_FILE = "stored_traces.json"
SITE = "https://raw.githubusercontent.com"
TIMEOUT_S = 20
MAX_BYTES = 256 * 2**20  # ten times the largest: of more, the SHA-256 is another
LISTED = ["name", "hardware", "title", "lesson", "repository", "here"]


def public_trace(name: str | None = None) -> Breakdown | RankTraces | pandas.DataFrame:
    """List the public traces of real GPUs, or fetch the one called `name` and break it down.

    Its source names hardware and repository, and says STORED where the trace is neither here nor
    can be fetched: then this is what was read from it before, and a note has the reason and the
    remedy. ValueError: an unknown name. TraceError: the file that came is not the one that was
    published; it is not kept.
    """
    known = entries(FILE)
    if name is None:
        import pandas

        rows = [{"name": name, **each, "here": bool(_local(each))} for name, each in known.items()]
        return pandas.DataFrame(rows, columns=LISTED)
    check_names([name], known, "trace")
    wanted = known[name]
    source = f"{name}: {wanted['hardware']}, {wanted['repository']}"
    try:
        return replace(trace(_local(wanted) or _download(wanted)), source=source)
    except (OSError, http.client.HTTPException) as why:  # no network, among others
        reason = printable(" ".join(f"{type(why).__name__}: {why}".split()))
    note = (
        f"STORED numbers and excerpts: the trace was not fetched ({reason}). Connect to the "
        f"network, or set LABKIT_TRACES to a folder with {wanted['file']!r} in it."
    )
    first, *others = ranks = tuple(filter(None, map(breakdown_of, entries(STORED_FILE)[name])))
    found = RankTraces("", ranks) if others else first
    return replace(found, source=f"STORED {source}", notes=[*found.notes, note])


def _cache_path(wanted: dict[str, Any]) -> Path:
    return part("traces") / f"{wanted['sha256'][:12]}-{wanted['file']}"


def _local(wanted: dict[str, Any]) -> Path | None:
    """Return the file in the user's folder or the cache; None where no file there is it.

    It may be a copy that lacks only metadata.
    """
    folder = os.environ.get("LABKIT_TRACES")
    found = Path(folder).rglob(wanted["file"]) if folder else ()
    for path in (*found, _cache_path(wanted)):
        with contextlib.suppress(OSError), open_plain(path) as file:
            digest = hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
            if digest in (wanted["sha256"], *wanted["copies"]):
                return path
    return None


def _download(wanted: dict[str, Any]) -> Path:
    """Fetch it into the cache; OSError where that fails.

    TraceError where another file came, which is not kept.
    """
    url = f"{SITE}/{wanted['repository']}/{wanted['commit']}/{wanted['path']}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        content = answer.read(MAX_BYTES)
    if content.lstrip()[:1] == b"<":
        raise OSError("a web page came in its place: does this network ask for a login?")
    digest = hashlib.sha256(content).hexdigest()
    if digest != wanted["sha256"]:
        raise TraceError(
            f"{url} is not the file that was published: its SHA-256 is {digest}, not "
            f"{wanted['sha256']}. Nothing was kept; try again, or get {wanted['file']!r} from "
            "somebody you trust and set LABKIT_TRACES to its folder."
        )
    path = _cache_path(wanted)
    with open(path, "wb", opener=private) as file:  # cut short, it is not believed: see `_local`
        file.write(content)
    return path
