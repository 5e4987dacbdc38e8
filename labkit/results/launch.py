"""Start what a spec describes in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from labkit.instruments.record_head import spec_event
from labkit.orders import Asked, Order, UserSource
from labkit.process import folders, launcher
from labkit.process.handle import Handle
from labkit.results.failures import with_remedy
from labkit.results.hardware import check_device
from labkit.spec import Distributed


class Payload(Protocol):
    """Data of the user's own, or a function, that the bench is to use."""

    def place(self, folder: Path) -> UserSource:
        """Write it to a run's folder; return what tells the bench of it, as JSON types."""
        ...

    def described(self, spec: Launched) -> Mapping[str, object]:
        """Return what the log's first event says of a spec that uses it."""
        ...


class Launched(Protocol):
    """A spec of something that can be run: a Pipeline, a Grid, Distributed ranks."""

    def to_spec(self) -> Asked:
        """Return what the log's first event says of it."""
        ...


def started(
    spec: Launched, fault: str | None, after: list[str] | None, source: Payload | None
) -> Handle:
    """Start what a spec describes apart from the kernel; see `labkit.api.launch`."""
    asked = spec.to_spec()
    check_device(asked["pipeline"]["device"], asked.get("ranks", 0))
    kind = launcher.RANKS if isinstance(spec, Distributed) else launcher.BENCH
    try:
        with launcher.starting(kind, after) as handle:
            run = handle.folder.name
            cache = str(folders.home())
            order: Order = {"run": run, "cache": cache, "fault": fault, **asked}
            if source is None:
                handle.begin(order, spec_event(run, **asked))
            else:
                whole = {**order, "source": source.place(handle.folder)}
                handle.begin(whole, spec_event(run, **source.described(spec)))
    except OSError as error:
        raise OSError(with_remedy(f"No run could be started: {error}.")) from error
    return handle
