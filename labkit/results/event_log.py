"""An event log and the process that writes it. The log is the record: nothing derived is stored."""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from labkit.process.notebook import in_notebook
from labkit.results import privacy, saving
from labkit.results.failures import reason_of_failure
from labkit.results.hardware import Machine
from labkit.results.log_reader import LogReader, fact, live_property, of_one_moment
from labkit.stamps.interrupts import held
from labkit.stamps.record import Event, opened_record, record_file

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_S = 0.05  # between two looks at a run that goes on

Outcome = Literal["running", "finished", "stopped", "failed"]


class EventLogResult(LogReader):
    """What every log says of its run, which can be waited for, ended and saved."""

    NUMBERS: ClassVar[tuple[str, ...]] = ("id", "utc", "recorded", "outcome", "error", "mark")
    """The attributes that `to_dict` and `--json` list."""

    @property
    def id(self) -> str:
        """The run's name: date, time and six hex digits."""
        return self._fact("spec", "run", self.path.name)

    # When it was started, as an ISO time in UTC; None if unknown
    utc: str | None = fact("spec", "utc")
    # The bench's own traceback, where an exception ended the run
    traceback: str | None = fact("error", "traceback")

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
            return self.settle()

    def stop(self) -> Self:
        """End the run now (0.1 s; 1.2 s where the bench does not answer) and keep what it did."""
        if self._process is not None:
            self._process.stop()
        return self.settle()

    def settle(self) -> Self:
        """Wait for the last event: the supervisor writes it once every process is gone."""
        if self._process is not None:
            self._process.join()
        return self.refresh()

    # Saving and showing it

    def save(
        self, path: str | os.PathLike[str], overwrite: bool = False, anonymous: bool = False
    ) -> Path:
        """Write the record to `path`: one file, packed where its name ends in .gz; return it.

        A file that is not as labkit wrote it is replaced only with `overwrite`, else FileKept is
        raised, which is a ValueError and an OSError. Where writing fails, the file that was there
        stays. `anonymous` leaves out folders, the user's name, the names of other programs and what
        errors say of items: for a record to share.
        """
        path = Path(path)
        is_there = path.exists() and os.path.samefile(record_file(self.path), path)
        if is_there and not anonymous:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            old = files.enter_context(opened_record(self.path))
            new = files.enter_context(saving.replacing(path, overwrite))
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
