"""Start what a spec describes in processes of its own; return its result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, overload

from labkit.bench.grid import Grid
from labkit.bench.record_head import spec_event
from labkit.orders import Asked, Order, UserSource
from labkit.process import folders, launcher
from labkit.results.failures import with_remedy
from labkit.results.hardware import check_device
from labkit.results.library import Loaded, kind_of
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.spec import Distributed

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


class Options(TypedDict, total=False):
    """What `launch` takes beside the spec."""

    fault: str | None
    after: list[str] | None
    source: Payload | None


@overload
def launch(  # pyright: ignore[reportOverlappingOverload]
    spec: Distributed, **options: Unpack[Options]
) -> Ranks: ...
@overload
def launch(spec: Grid, **options: Unpack[Options]) -> Measurements: ...
@overload
def launch(spec: Launched, **options: Unpack[Options]) -> Run: ...
def launch(
    spec: Launched,
    *,
    fault: str | None = None,
    after: list[str] | None = None,
    source: Payload | None = None,
) -> Loaded:
    """Start what a spec describes apart from the kernel; return its Run, Measurements or Ranks.

    Args:
        spec: A Pipeline, a Grid, Distributed ranks.
        fault: Planted in the bench (`labkit.bench.planted_fault`).
        after: A command that the supervisor starts when the run is over.
        source: Feeds the user's own dataset, or function.

    Raises:
        ValueError: The device that it names is not here.
        OSError: No process could be started.
    """
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
    return kind_of(asked)(handle.folder, process=handle)
