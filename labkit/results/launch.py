"""Start what a spec describes in processes of its own."""

from __future__ import annotations

from typing import Any, Protocol

from labkit.instruments.record_head import spec_event
from labkit.orders import Order
from labkit.process import folders, launcher
from labkit.process.launcher import Handle
from labkit.results.failures import with_remedy
from labkit.results.hardware import check_device
from labkit.results.payload import Source
from labkit.spec import LOADER_KNOBS, Distributed


class Launched(Protocol):
    """A spec of something that can be run: a Pipeline, a Grid, Distributed ranks."""

    def to_spec(self) -> Order:
        """Return what the log's first event says of it."""
        ...


def started(
    spec: Launched, fault: str | None, after: list[str] | None, source: Source | None
) -> Handle:
    """Start what a spec describes apart from the kernel; see `labkit.api.launch`."""
    asked = spec.to_spec()
    check_device(asked["pipeline"]["device"], asked.get("ranks", 0))
    kind = launcher.RANKS if isinstance(spec, Distributed) else launcher.BENCH
    said: dict[str, Any] = {**asked}
    if source is not None and "measure" not in asked:  # the other knobs act on no part of theirs
        knobs = {name: asked["pipeline"][name] for name in LOADER_KNOBS}
        said = {"pipeline": knobs, "watched": {"loader": f"DataLoader({source.name})"}}
    try:
        with launcher.starting(kind, after) as handle:
            run = handle.folder.name
            order: Any = {"run": run, "cache": str(folders.home()), "fault": fault, **asked}
            if source is not None:
                order["source"] = source.place(handle.folder)
            handle.begin(order, spec_event(run, **said))
    except OSError as error:
        raise OSError(with_remedy(f"No run could be started: {error}.")) from error
    return handle
