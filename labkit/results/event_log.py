"""An event log and the process that writes it. The log is the record: nothing derived is stored."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.process import folders
from labkit.process.events import FILE_NAME
from labkit.process.family import exit_name
from labkit.process.interrupts import held, in_notebook
from labkit.results import privacy, saving
from labkit.results.hardware import Machine
from labkit.results.record import Tail, events_of, is_record, opened, record_file
from labkit.wiring import above

# (what the reason says, what to do). The first that matches is shown behind the reason itself.
REMEDIES = [
    (r"out of memory|can't allocate memory|not enough memory|DefaultCPUAllocator",
     "lower batch_size, width or image_px, or use precision='bf16' and accumulation_steps."),
    (r"[Bb]us error|shared memory|</torch_\d",
     "/dev/shm is full: lower num_workers or batch_size, or give the container --shm-size=2g."),
    (r"Can't get attribute .* on <module '__m(p_m)?ain__'",
     "workers are started anew (spawn, forkserver) and do not know a notebook's classes: move the "
     "dataset to a .py file and import it; or, where nothing has used a GPU, pass "
     "multiprocessing_context='fork' to the DataLoader."),
    (r"worker.* killed.*SIGKILL",
     "often the out-of-memory killer: lower num_workers or prefetch_factor."),
    (r"worker.* (killed|ended|exited unexpectedly)",
     "a loader worker died: num_workers=0 shows its error. A worker that is started anew (spawn, "
     "forkserver) knows no class of a notebook: move the dataset to a .py file, or pass "
     "multiprocessing_context='fork' where nothing has used a GPU."),
    (r"(can ?not|can't) .*pickle.*in DataLoader worker",
     "workers send what the dataset returns: tensors, arrays, texts; no lambdas or open files."),
    (r"pickle", "workers are sent the dataset: define all of it at the top of a module."),
    (r"DataLoader timed out", "a loader worker hangs: try num_workers=0 to see where."),
    (r"No space left on device|quota exceeded",
     "the disk is full: free some space or move LABKIT_HOME."),
    (r"Too many open files|items of ancdata", "raise it (ulimit -n 4096), or lower num_workers."),
    (r"Read-only file system", "set LABKIT_HOME to a folder that can be written to."),
    (r"No such file or directory: .*python|could not start Python",
     "this kernel's Python is gone: choose another kernel, or install its environment again."),
    (r"No module named 'torch'|libtorch|undefined symbol", "install PyTorch: requirements.txt."),
    (r"stops before the end", "the computer went down, or the disk is full: run it again."),
    (r"C\+\+ compiler", "install g++ or clang, or run with compile=None."),
    (r"SIGKILL", "often the out-of-memory killer: lower batch_size, width or num_workers."),
    (r"SIGSEGV|SIGABRT|SIGBUS|SIGILL", "the native stack is in the run folder's bench.stderr."),
]  # fmt: skip


POLL_S = 0.05  # between two looks at a run that goes on


def of_one_moment(compute: Callable) -> Callable:
    """Let a function whose first argument is a result see one moment of it, start to end."""

    @functools.wraps(compute)
    def held(self: EventLogResult, *args: Any, **kwargs: Any) -> Any:
        with self.as_of_now():
            return compute(self, *args, **kwargs)

    return held


def derived(compute: Callable, doc: str | None = None) -> property:
    """Make a property whose value is derived from one moment of the log."""
    return property(of_one_moment(compute), doc=doc)


def fact(event: str, key: str, doc: str, default: Any = None) -> property:
    """Make a property that is what the last `event` says of `key`."""
    return property(lambda log: log._fact(event, key, default), doc=doc)


class EventLogResult:
    """One event log, live or recorded: whoever asks a live one gets what it has written by then."""

    SERIES: tuple[str, ...] = ()  # events of which every one is kept; of others, the last
    _alive = False  # whether its process was, when the log was last read

    def __init__(self, path: Path, process: Any = None, recorded: bool = False, tail: Any = None):
        """Read a run's folder or a saved record (`recorded`: not live here).

        `process` is a live supervisor's handle; `tail` is read in place of the file (a replay).
        """
        self.path, self.recorded = Path(path), recorded
        folders.in_use[self] = self.path.absolute()
        self.alias: str | None = None  # what figures call it where its knobs are to stay hidden
        self._process = process
        self._reading = threading.Lock()
        self._kept: dict[str, dict[str, Any]] = {}  # the last event of each name
        self._series = {name: self._new_series(name) for name in self.SERIES}
        self._holds: set[object] = set()  # nothing is read on its own while one is in here
        self._tail = tail
        if tail is None and recorded:
            with self._hold():
                self._absorb(events_of(self.path))
        elif tail is None:
            self._tail = Tail(self.path / FILE_NAME)

    def _new_series(self, name: str) -> Any:
        """Return what keeps every event of that name."""
        return []

    def refresh(self) -> EventLogResult:
        """Read what has been written since the last call."""
        if self._tail is None:
            return self
        with self._reading, self._hold():  # a panel stops its run in a thread: once is enough
            if self._tail is not None:
                alive = self._process is not None and self._process.alive()
                self._absorb(self._tail.read())
                self._alive = alive  # only now: who asks meanwhile is told of the moment before
                if not alive and "end" in self._kept:
                    self._tail = None  # complete: nothing will follow
        return self

    @contextlib.contextmanager
    def as_of_now(self) -> Iterator[EventLogResult]:
        """Read what has been written, and nothing more within the block: one moment of it."""
        self._now()
        with self._hold():
            yield self

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        mine = object()
        try:  # wherever an interrupt comes, none is left behind
            self._holds.add(mine)
            yield
        finally:
            self._holds.discard(mine)

    def _now(self) -> EventLogResult:
        """Read what has been written since (6 µs while it grows), unless held at a moment."""
        return self if self._holds else self.refresh()

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the last event of that name; None where there is none."""
        return self._now()._kept.get(name)

    def _fact(self, event: str, key: str, default: Any = None) -> Any:
        """Return what the last event of that name says of `key`; null is like nothing."""
        value = (self.event(event) or {}).get(key)
        return default if value is None else value

    def _absorb(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        """Keep what matters of one event."""
        name = event["event"]
        if name in self._series:
            self._series[name].append(event)
        else:
            self._kept[name] = event

    # fmt: off
    id = derived(lambda log: log._fact("spec", "run", log.path.name),
                 "The run's name: date, time and six hex digits.")
    utc = fact("spec", "utc", "When it was started, as an ISO time in UTC; None if unknown.")
    machine = derived(lambda log: Machine.from_dict(log.event("machine") or {}),
                      "The machine it ran on.")
    mark = derived(lambda log: f"RECORDED on {log.machine.name}" if log.recorded else None,
                   '"RECORDED on ..." where it was not measured here; None where it was.')
    stage = derived(lambda log: log.event("stage") or {"name": "starting"},
                    "The last stage before training: `name`, and `done` of `total` where counted.")
    running = derived(lambda log: log.outcome == "running", "True until it has ended.")
    traceback = fact("error", "traceback", "The bench's own, where an exception ended the run.")
    # fmt: on

    @derived
    def outcome(self) -> str:
        """Whether it is "running", "finished", "stopped" or "failed"."""
        if "done" in self._kept:
            return "finished"
        stopped = self._kept.get("end", {}).get("stop") is not None
        if stopped or ("error" not in self._kept and "end" not in self._kept and self._alive):
            return "stopped" if stopped else "running"
        return "failed"

    @derived
    def error(self) -> str | None:
        """Why it failed, with a remedy where one is known; None if it did not."""
        if self.outcome != "failed":
            return None
        error, end = self._kept.get("error"), self._kept.get("end")
        if error:
            text = _first_cause(error)
        elif end is None:
            text = "The run ended without a word: its record stops before the end."
        elif end.get("why"):
            text = f"{end['why'].rstrip('.')}."
        elif (code := end.get("code")) is not None and code < 0:
            text = f"The bench process was ended by {exit_name(code)}."
        else:
            text = f"The bench process ended with {exit_name(code)}, before the run was done."
        return with_remedy(text)

    def wait(self, each: Any = None) -> EventLogResult:
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

    def wait_or_raise(self, each: Any = None) -> EventLogResult:
        """Do as `wait`, but pass an interrupt on in a notebook too: this is one run of several."""
        with held() as pressed:  # torn nowhere: neither between two events nor in stopping
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

    @derived
    def ended(self) -> str:
        """How it ended, after how many steps: "stopped after 34 steps"."""
        steps = getattr(self, "steps", None)
        after = "" if steps is None else f" after {steps:,} step{'' if steps == 1 else 's'}"
        return f"{self.outcome}{after}"

    def stop(self) -> EventLogResult:
        """End the run now (0.1 s; 1.2 s where the bench does not answer) and keep what it did."""
        if self._process is not None:
            self._process.stop()
        return self._settle()

    def _settle(self) -> EventLogResult:
        """Wait for the last event: the supervisor writes it once every process is gone."""
        if self._process is not None:
            self._process.join()
        return self.refresh()

    @of_one_moment
    def plot(self, **drawing: Any) -> Any:
        """Draw it as a matplotlib Figure; the options are those of its figure."""
        return above(f"{type(self).__name__}.plot")(self, **drawing)

    def save(
        self, path: str | os.PathLike, overwrite: bool = False, anonymous: bool = False
    ) -> Path:
        """Write the record to `path`: one file, packed where its name ends in .gz; return it.

        An earlier record there is replaced, any other file only with `overwrite`: FileKept, which
        is a ValueError and an OSError. Where it cannot be written, what was there stays.
        `anonymous` leaves out folders, the user's name, process ids and the names of other
        programs: for a record to share.
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
            new.writelines(f"{line}\n".encode() for line in self._extra_lines())
        return path

    @of_one_moment
    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.recorded else ""
        what = f"{type(self).__name__}({self._what()}) {self.outcome}"
        return f"{mark}{what}: {self.error or self.numbers}"

    def _extra_lines(self) -> Iterable[str]:
        """Return the lines of JSON that a saved record has beyond the log."""
        return ()


def with_remedy(text: str) -> str:
    """Return `text`, followed by what to do about it where that is known."""
    remedy = next((do for pattern, do in REMEDIES if re.search(pattern, text)), None)
    return f"{text} Remedy: {remedy}" if remedy else text


def _first_cause(error: dict[str, Any]) -> str:
    """Say what an error event tells; of one that a worker sent over as text, its first cause."""
    message = error["message"].strip()
    lines = message.splitlines() or ["no message"]
    text = f"{error['kind']}: {lines[0]}".rstrip(".") + "."
    if "Original Traceback" in message:
        last = [line for line in lines if line and not line.startswith(" ")][-1]
        text = f"{last} ({lines[0][0].lower()}{lines[0][1:].rstrip('.')})."
    dead, files = error.get("workers"), error.get("files")
    if files and "Too many open files" not in message:
        had = f"a process of the run had {files[0]} of {files[1]} allowed"
        text = f"Too many open files: {had}. {text}"
    if dead and not re.search(r"worker.* (signal|exit code)", message):
        pid, code = next(iter(dead.items()))
        how = "was killed" if isinstance(code, int) and code < 0 else "ended"
        text = f"Loader worker {pid} {how} ({exit_name(code)}). {text}"
    return text
