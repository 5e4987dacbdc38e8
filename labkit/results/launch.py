"""Start what a spec describes in processes of its own; return what tells of it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import labkit
from labkit.process import folders, launcher
from labkit.process.events import VERSION
from labkit.results.event_log import EventLogResult
from labkit.results.failures import with_remedy
from labkit.results.library import kind_of
from labkit.spec import Distributed


def launch(
    spec: Any, *, fault: str | None = None, after: list[str] | None = None, source: Any = None
) -> EventLogResult:
    """Start a Pipeline, a Grid or Distributed ranks apart from the kernel; or raise OSError.

    `fault` is planted in the bench (`labkit.bench.process.planted`), `after` a command that the
    supervisor starts when the run is over; `source` (a tuner's Source) feeds the reader's dataset.
    """
    kind = launcher.RANKS if isinstance(spec, Distributed) else launcher.BENCH
    what = spec.to_spec()
    try:
        with launcher.starting(kind, after) as handle:
            folder = handle.folder
            order = {"run": folder.name, "cache": str(folders.home()), "fault": fault, **what}
            if source is not None:
                order["source"] = source.place(folder)
                what = source.described(spec)
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            head = {"event": "spec", "version": VERSION, "run": folder.name, "utc": now}
            handle.begin(order, {**head, "labkit": labkit.__version__, **what})
    except OSError as error:
        raise OSError(with_remedy(f"No run could be started: {error}.")) from error
    return kind_of(what)(folder, process=handle)
