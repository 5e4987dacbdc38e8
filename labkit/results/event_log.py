"""An event log and the process that writes it. The log is the record: nothing derived is stored."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
)

from labkit.process import folders
from labkit.process.device_lock import DeviceBusy
from labkit.process.events import FILE_NAME
from labkit.process.interrupts import held
from labkit.process.notebook import in_notebook
from labkit.results import privacy, saving
from labkit.results.failures import reason_of_failure
from labkit.results.hardware import Machine
from labkit.results.record import Event, Tail, events_of, is_record, opened, record_file
from labkit.results.steps import Steps, Texts

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_S = 0.05  # s between two looks at a run that goes on

Outcome = Literal["running", "finished", "stopped", "failed"]
Log = TypeVar("Log", bound="EventLogResult")
Arguments = ParamSpec("Arguments")
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


def of_one_moment(
    compute: Callable[Concatenate[Log, Arguments], Value],
) -> Callable[Concatenate[Log, Arguments], Value]:
    """Let a function whose first argument is a live result read one moment of its log."""

    @functools.wraps(compute)
    def computed(log: Log, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        with log.as_of_now():
            return compute(log, *args, **kwargs)

    return computed


class live_property(property):
    """A property of a log that may still grow: computed once for each moment of it."""

    def __get__(self, log: EventLogResult | None, owner: type | None = None) -> Any:
        return self if log is None or self.fget is None else log.once(self.fget)


class EventLogResult:
    """One event log, live or recorded. A live log is read on again at each access."""

    SERIES: ClassVar[dict[str, type[list[Event] | Texts | Steps]]] = {}
    """The events that are all kept, and in what; of every other event only the last is kept."""
    NUMBERS: ClassVar[tuple[str, ...]] = ("id", "utc", "recorded", "outcome", "error", "mark")
    """The attributes that `to_dict` and `--json` list."""

    def __init__(
        self,
        path: Path,
        process: Process | None = None,
        recorded: bool = False,
        tail: Tail | None = None,
        whole: EventLogResult | None = None,
    ):
        """Read a run's folder or a saved record (`recorded`: it does not grow).

        `process` is what writes the log; `tail` is read in place of the file (a replay). A part of
        a `whole` reads nothing itself: the whole reads for it, and both are at the same moment.
        """
        self.path = Path(path)
        self.recorded = recorded
        folders.in_use[self] = self.path.absolute()
        self._process = process if whole is None else whole._process
        self._whole = whole
        self._alive = False  # whether the process was, when the log was last read
        self._reading = threading.Lock()
        self.computed: dict[object, Any] = {}  # of this moment, by what computes it
        self._kept: dict[str, Event] = {}  # the last event of each name
        self._series = {name: make() for name, make in self.SERIES.items()}
        # While one is in here, nothing new is read
        self._holds: set[object] = set() if whole is None else whole._holds
        self._tail = tail
        if whole is not None or tail is not None:
            return
        if recorded:
            with self._hold():
                self._absorb(events_of(self.path))
        else:
            self._tail = Tail(self.path / FILE_NAME)

    # Reading the log

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

    # What every log says

    @property
    def id(self) -> str:
        """The run's name: date, time and six hex digits."""
        return self._fact("spec", "run", self.path.name)

    @property
    def utc(self) -> str | None:
        """When it was started, as an ISO time in UTC; None if unknown."""
        return self._fact("spec", "utc")

    @property
    def machine(self) -> Machine:
        """The machine it ran on."""
        return Machine.from_dict(self.event("machine") or {})

    @property
    def mark(self) -> str | None:
        """Return "RECORDED on ..." where it was not measured here; None where it was."""
        return f"RECORDED on {self.machine.name}" if self.recorded else None

    @property
    def stage(self) -> Event:
        """The last stage before training: `name`, `done` of `total` where counted, `waiting`."""
        return self.event("stage") or {"name": "starting"}

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.outcome == "running"

    @property
    def traceback(self) -> str | None:
        """The bench's own traceback, where an exception ended the run."""
        return self._fact("error", "traceback")

    @live_property
    def outcome(self) -> Outcome:
        """How far it is, or how it ended."""
        if "done" in self._kept:
            return "finished"
        if self._kept.get("end", {}).get("stop") is not None:
            return "stopped"
        ended = "error" in self._kept or "end" in self._kept
        return "running" if self._alive and not ended else "failed"

    @live_property
    def error(self) -> str | None:
        """Why it failed, with a remedy where one is known; None if it did not."""
        if self.outcome != "failed":
            return None
        return reason_of_failure(self._kept.get("error"), self._kept.get("end"))

    @property
    def steps(self) -> int | None:
        """Steps done, warm-up included; None of what makes no steps."""
        return None

    @property
    def found_device_busy(self) -> bool:
        """Whether it failed before it began, because another run kept the device."""
        return self._fact("error", "kind") == DeviceBusy.__name__

    @property
    def ended(self) -> str:
        """How it ended, after how many steps: "stopped after 34 steps"."""
        if self.steps is None:
            return self.outcome
        return f"{self.outcome} after {self.steps:,} step{'' if self.steps == 1 else 's'}"

    # Waiting for it, and ending it

    def wait(self, each: Callable[[Self], object] | None = None) -> Self:
        """Block until the run has ended, calling `each(run)` as it grows. An interrupt stops it.

        In a notebook the stopped run is returned; elsewhere KeyboardInterrupt is passed on.
        """
        try:
            return self.wait_or_raise(each)
        except KeyboardInterrupt:
            if self.running or not in_notebook():
                raise
            if self.outcome == "stopped":
                print(f"{self.ended}; what was measured by then is in what this returned.")
            return self

    def wait_or_raise(self, each: Callable[[Self], object] | None = None) -> Self:
        """Do as `wait`, but pass an interrupt on in a notebook too: this is one run of several."""
        with held() as pressed:  # so that reading an event or stopping is never cut short
            try:
                while self.running and not pressed:
                    if each is not None:
                        each(self)
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                pressed.append(0.0)
            if pressed:
                self.stop()
                pressed.clear()
                raise KeyboardInterrupt
            return self._settle()

    def stop(self) -> Self:
        """End the run now (0.1 s; 1.2 s where the bench does not answer) and keep what it did."""
        if self._process is not None:
            self._process.stop()
        return self._settle()

    def _settle(self) -> Self:
        """Wait for the last event: the supervisor writes it once every process is gone."""
        if self._process is not None:
            self._process.join()
        return self.refresh()

    # Saving and showing it

    def save(
        self, path: str | os.PathLike[str], overwrite: bool = False, anonymous: bool = False
    ) -> Path:
        """Write the record to `path`: one file, packed where its name ends in .gz; return it.

        An earlier record there is replaced. Any other file is replaced only with `overwrite`, else
        FileKept is raised, which is a ValueError and an OSError. Where writing fails, the file that
        was there stays. `anonymous` leaves out folders, the user's name, process ids and the names
        of other programs: for a record to share.
        """
        path = Path(path)
        same = path.exists() and os.path.samefile(record_file(self.path), path)
        if same and not anonymous:
            return path
        saving.check(path, is_record, overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            old = files.enter_context(opened(self.path))
            new = files.enter_context(saving.replacing(path))
            if path.suffix == ".gz":
                new = files.enter_context(gzip.GzipFile("", "wb", fileobj=new))
            new.writelines(privacy.anonymous(old) if anonymous else old)
            new.writelines(f"{line}\n".encode() for line in self.extra_lines())
        return path

    def extra_lines(self) -> Iterable[str]:
        """Return the lines of JSON that a saved record has beyond the log."""
        return ()

    @property
    def numbers(self) -> str:
        """The measured numbers in one line."""
        raise NotImplementedError

    def _what(self) -> str:
        """Say what was measured, as in the parentheses of `Run(...)`."""
        raise NotImplementedError

    @of_one_moment
    def to_dict(self) -> dict[str, object]:
        """Return what was measured under its attributes' names, as JSON types."""
        numbers = {name: getattr(self, name) for name in self.NUMBERS}
        return {**numbers, "machine": self.machine.to_dict()}

    @of_one_moment
    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.mark else ""
        what = f"{type(self).__name__}({self._what()}) {self.outcome}"
        return f"{mark}{what}: {self.error or self.numbers}"
