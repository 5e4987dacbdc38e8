"""Reads an event log, as it grows or from a record, and holds it at one moment where asked to."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from labkit.stamps.events import FILE_NAME
from labkit.stamps.record import Event, Tail, events_of
from labkit.stamps.steps import Steps, Texts

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable)
Value = TypeVar("Value")


class Process(Protocol):
    """A run that can go on: the handle of a supervisor, a watched loop, or a replay."""

    def alive(self) -> bool:
        """Return whether more events may follow."""
        ...

    def stop(self) -> None:
        """End it now."""
        ...

    def join(self) -> None:
        """Wait until it has written its last event."""
        ...


def of_one_moment(compute: Function) -> Function:
    """Let a function whose first argument is a live result read one moment of its log."""

    @functools.wraps(compute)
    def computed(log: LogReader, *args: Any, **kwargs: Any) -> Any:
        with log.as_of_now():
            return compute(log, *args, **kwargs)

    return cast("Function", computed)


def fact(event: str, key: str, default: object = None) -> Any:
    """Return a property of a log: the value of `key` in the last event of a name, as `_fact`."""
    return property(lambda log: log._fact(event, key, default))


def series(name: str) -> Any:
    """Return a property of a log: all events of a name in its `SERIES`."""
    return property(lambda log: log._events(name))


class live_property(property):
    """A property of a log that may still grow: computed once for each moment of it."""

    def __get__(self, log: LogReader | None, owner: type | None = None) -> Any:
        return self if log is None or self.fget is None else log.once(self.fget)


class LogReader:
    """The events of one log, live or recorded. A live log is read on again at each access."""

    SERIES: ClassVar[dict[str, type[list[Event] | Texts | Steps]]] = {}
    """The events that are all kept, and in what; of every other event only the last is kept."""

    def __init__(
        self,
        path: Path,
        process: Process | None = None,
        recorded: bool = False,
        whole: LogReader | None = None,
    ):
        """Read a run's folder or a saved record (`recorded`: it does not grow).

        `process` is what writes the log. A part of a `whole` reads nothing itself: the whole reads
        for it, and both are at the same moment.
        """
        self.path = Path(path)
        self.recorded = recorded
        self._process = process if whole is None else whole._process
        self._whole = whole
        self._alive = False  # whether the process was, when the log was last read
        self._reading = threading.Lock()
        self.computed: dict[object, Any] = {}  # of this moment, by what computes it
        self._kept: dict[str, Event] = {}  # the last event of each name
        self._series = {name: make() for name, make in self.SERIES.items()}
        # While one is in here, nothing new is read
        self._holds: set[object] = set() if whole is None else whole._holds
        reads = not recorded and whole is None
        self._tail = Tail(self.path / FILE_NAME) if reads else None
        if recorded and whole is None:
            with self._hold():
                self._absorb(events_of(self.path))

    def refresh(self) -> Self:
        """Read what has been written since the last call."""
        if self._whole is not None:
            self._whole.refresh()
        if self._tail is None:
            return self
        with self._reading, self._hold():  # a panel stops its run in another thread
            if self._tail is not None:
                alive = self._process is not None and self._process.alive()
                self._absorb(self._tail.read())
                self.begin_moment(alive)
                if not alive and "end" in self._kept:
                    self._tail = None  # complete: nothing will follow
        return self

    @contextlib.contextmanager
    def as_of_now(self) -> Iterator[Self]:
        """Read what has been written, and nothing more within the block: one moment of it."""
        self._now()
        with self._hold():
            yield self

    def once(self, compute: Callable[[Self], Value]) -> Value:
        """Return what `compute(self)` returns; it is called once for each moment of the log."""
        with self.as_of_now():
            computed = self.computed  # of this moment: a thread may read on meanwhile
            if compute not in computed:
                computed[compute] = compute(self)
            return computed[compute]

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        mine = object()
        try:  # inside, so that an interrupt at any point leaves none behind
            self._holds.add(mine)
            yield
        finally:
            self._holds.discard(mine)

    def _now(self) -> Self:
        """Read what has been written since (6 µs while it grows), unless held at a moment."""
        return self if self._holds else self.refresh()

    def event(self, name: str) -> Event | None:
        """Return the last event of that name; None where there is none."""
        return self._now()._kept.get(name)

    def _fact(self, event: str, key: str, default: Value = None) -> Value:
        """Return the value of `key` in the last event of that name; null counts as missing."""
        value = (self.event(event) or {}).get(key)
        return default if value is None else value

    def _events(self, name: str) -> Any:
        """Return all events of a name in `SERIES`."""
        return self._now()._series[name]

    def begin_moment(self, alive: bool) -> None:
        """Let readers see what was taken in; `alive`: whether more may follow."""
        self._alive = alive
        self.computed = {}

    def _absorb(self, events: Iterable[Event]) -> None:
        """Take in what was read."""
        for event in events:
            self.take_in(event)

    def take_in(self, event: Event) -> None:
        """Keep what matters of one event."""
        name = event["event"]
        if name in self._series:
            self._series[name].append(event)
        else:
            self._kept[name] = event
