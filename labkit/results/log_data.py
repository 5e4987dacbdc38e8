"""What an event log says at one moment. The log is the record: nothing derived is stored."""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labkit.results.failures import reason_of_failure
from labkit.results.hardware import Machine
from labkit.stamps.record import Event, Tail, record_file
from labkit.stamps.steps import HOST, Steps

if TYPE_CHECKING:
    from typing_extensions import Self

Outcome = Literal["running", "finished", "stopped", "failed"]
ENDINGS = ("done", "error", "end")  # events after which nothing follows


def fact(event: str, *keys: str, default: object = None) -> Any:
    """Return a property of a log: what stands under `keys` in the last event, as `fact_of`."""
    return property(lambda log: log.fact_of(event, *keys, default=default))


class LogData:
    """What a log says of its run. Only who reads the log adds to it; others have it `as_of_now`."""

    def __init__(self, path: Path, *, recorded: bool = False):
        """Take the log in a run's folder, of which `follow` reads; or a saved record."""
        self.path = path
        self.recorded = recorded
        self.alive = False  # more may follow
        self._tail = Tail(record_file(path))
        self._events: dict[str, list[Event]] = {}  # by name, in order
        self._steps = Steps()

    def follow(self) -> bool:
        """Take in what has been written to the log since; return whether there was anything."""
        events = self._tail.read()
        for event in events:
            self.take_in(event)
        return bool(events)

    def take_in(self, event: Event) -> None:
        """Take in one more event of the log."""
        name = event["event"]
        if name == "step":
            self._steps.append(event)
        else:
            self._events.setdefault(name, []).append(event)
        if name == "epoch":  # a watched loop that seemed to have ended goes on
            for ending in ENDINGS:
                self._events.pop(ending, None)

    def as_of_now(self, alive: bool) -> Self:
        """Return what has been read by now: what is read later does not show in it."""
        now = copy.copy(self)
        now.alive = alive
        now._events = {name: [*events] for name, events in self._events.items()}
        now._steps = self._steps.as_of_now()
        return now

    @property
    def data(self) -> Self:
        """Itself: what `data` of a live result is at a moment."""
        return self

    @property
    def host_ns(self) -> np.ndarray:
        """The host's stamps (steps, 4), ns on the machine's clock.

        When it asked for data, had it, had issued the copy, and had issued the compute.
        """
        return self._steps.table(HOST, slice(len(self._steps)))

    def all(self, name: str) -> list[Event]:
        """Return the events of that name, in order."""
        return self._events.get(name, [])

    def event(self, name: str) -> Event | None:
        """Return the last event of that name; None where there is none."""
        return next(reversed(self.all(name)), None)

    def fact_of(self, event: str, *keys: str, default: Any = None) -> Any:
        """Return what stands under `keys` in the last event of that name; null is missing."""
        value: Any = self.event(event)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    @property
    def id(self) -> str:
        """The run's name: date, time and six hex digits."""
        return self.fact_of("spec", "run", default=self.path.name)

    # When it was started, as an ISO time in UTC; None if unknown
    utc: str | None = fact("spec", "utc")

    @cached_property
    def machine(self) -> Machine:
        """The machine it ran on."""
        return Machine.from_dict(self.event("machine") or {})

    @property
    def mark(self) -> str | None:
        """Return "RECORDED on ..." where it was not measured here; None where it was."""
        return f"RECORDED on {self.machine.name}" if self.recorded else None

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.outcome == "running"

    @property
    def outcome(self) -> Outcome:
        """How far it is, or how it ended."""
        if self.event("done"):
            return "finished"
        if self.fact_of("end", "stop") is not None:
            return "stopped"
        ended = self.event("error") or self.event("end")
        return "running" if self.alive and not ended else "failed"

    @property
    def error(self) -> str | None:
        """Why it failed, with a remedy where one is known; None if it did not."""
        if self.outcome != "failed":
            return None
        return reason_of_failure(self.event("error"), self.event("end"))

    @property
    def numbers(self) -> str:
        """The measured numbers in one line."""
        raise NotImplementedError

    @property
    def what(self) -> str:
        """What was measured, as in the parentheses of `Run(...)`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.mark else ""
        what = f"{type(self).__name__.removesuffix('Data')}({self.what}) {self.outcome}"
        return f"{mark}{what}: {self.error or self.numbers}"
