"""Says so while a watched loop hangs: which process, since when, on which item, in which line.

The processes of a loop keep what they are busy with in small files (`Progress`), which can be read
whatever they hang in. The line is that of the last stack sampled there.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.bench.loader_clocks import (
    COLLATING,
    IDLE,
    NO_INDEX,
    PROGRESS,
    PROGRESS_BYTES,
    TEXT_BYTES,
    WORDS,
)
from labkit.process.events import FILE_NAME, EventLog, now_ns
from labkit.watching.passes import IN_BODY, WAITING

LEAST_S = 10.0  # without any progress, before it is called a hang,
LEAST_TIMES = 10.0  # and so many times the usual step
FIRST_S = 30.0  # before there is a usual one: workers start, models compile
BODY_S = 60.0  # in the body of the loop, which may validate or save
AGAIN_TIMES = 6.0  # longer, before it is said again
LOOK_S = 1.0
FORMAT = struct.Struct(f"={WORDS}q{TEXT_BYTES}s")


@dataclass(frozen=True)
class Busy:
    """What a process of a loop was busy with when it was looked at."""

    folder: Path  # of the run
    who: str  # "loop", "main" or the worker's number
    state: int
    since_ns: int
    batch: int
    index: int | str | None
    pid: int
    usual_ns: int  # of a step of the loop; 0 where that is not known


@dataclass(frozen=True)
class Hang:
    """A loop that does not move."""

    folder: Path
    seconds: float
    worker: int | None  # that it waits for; None where it is no worker's doing
    pid: int
    batch: int | None
    index: int | str | None
    line: str  # "train.py:31 in Items.__getitem__: cv2.resize()"; "" where no stack was sampled
    what: str  # the sentence about it

    @property
    def text(self) -> str:
        """What is said of it, with what can be done."""
        return f"nothing has moved for {self.seconds:.0f} s: {self.what}"


def progress_in(folder: Path) -> Iterator[Busy]:
    """Yield what each process of a run is busy with."""
    for path in sorted(folder.glob(f"{PROGRESS}-*")):
        with contextlib.suppress(OSError, struct.error):
            data = path.read_bytes()
            state, since, batch, number, pid, usual, text = FORMAT.unpack(data[:PROGRESS_BYTES])
            named = text.rstrip(b"\0").decode(errors="replace")
            index = number if number != NO_INDEX else named or None
            who = path.name.removeprefix(f"{PROGRESS}-")
            yield Busy(folder, who, state, since, batch, index, pid, usual)


def hang_in(folders: Iterable[Path], now: int) -> Hang | None:
    """Return the hang of a script's loops, each with its folder; None while anything moves."""
    busy = [each for folder in folders for each in progress_in(folder)]
    loops = [each for each in busy if each.who == "loop" and each.state != IDLE]
    if not loops:
        return None
    # of nested loops the inner one, which waits; else the one that moved last
    last = max(loops, key=lambda each: (each.state == WAITING, each.since_ns))
    moved_ns = max(each.since_ns for each in busy)
    seconds = (now - moved_ns) / 1e9
    least = BODY_S if last.state == IN_BODY else LEAST_S if last.usual_ns else FIRST_S
    if seconds < max(least, LEAST_TIMES * last.usual_ns / 1e9):
        return None
    makers = [each for each in busy if each.folder == last.folder and each is not last]
    return _described(last, [each for each in makers if each.state != IDLE], seconds)


def _described(loop: Busy, makers: list[Busy], seconds: float) -> Hang:
    """Say who keeps the loop waiting."""
    maker = min(makers, key=lambda each: each.since_ns) if makers else None
    if loop.state != WAITING:
        line = line_of(loop.folder, loop.pid, loop.since_ns)
        what = f"the loop's body goes on{_within(line)}."
        return Hang(loop.folder, seconds, None, loop.pid, None, None, line, what)
    if maker is None:
        what = (
            "the loop waits, and no worker has anything to do: a batch is on its way. Look at the "
            "space in /dev/shm, the pin-memory thread and what a batch holds."
        )
        return Hang(loop.folder, seconds, None, loop.pid, None, None, "", what)
    line = line_of(maker.folder, maker.pid, maker.since_ns)
    worker = int(maker.who) if maker.who.isdigit() else None
    name = f"worker {worker}" if worker is not None else "the main process (num_workers=0)"
    doing = "collates" if maker.state == COLLATING else f"fetches item {maker.index} of"
    advice = (
        "DataLoader(timeout=60) turns such a wait into an error."
        if worker is not None
        else "num_workers=1 and timeout=60 turn such a wait into an error."
    )
    what = f"{name} (pid {maker.pid}) {doing} batch {maker.batch}{_within(line)}. {advice}"
    return Hang(maker.folder, seconds, worker, maker.pid, maker.batch, maker.index, line, what)


def _within(line: str) -> str:
    return f", in {line}" if line else ""


def line_of(folder: Path, pid: int, since_ns: int) -> str:
    """Return the line that a process was last seen in after a moment; "" where it was not.

    A process that holds Python's lock (the GIL) in C code cannot be seen.
    """
    places: dict[str, list[Any]] = {}
    last: list[int] | None = None
    for line in (folder / FILE_NAME).read_bytes().splitlines():
        if not line.startswith(b'{"event":"lines"'):
            continue
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event["pid"] == pid:
                places |= event["places"]
                last = event["rows"][-1]
    if last is None or last[0] < since_ns:
        return ""
    _, _, file, number, function, call, *_ = places[str(last[2])]
    return f"{Path(file).name}:{number} in {function}" + (f": {call}" if call else "")


def write(hang: Hang) -> None:
    """Write a hang into the run's log."""
    log = EventLog(hang.folder)
    log.write(
        "hang",
        seconds=round(hang.seconds, 3),
        worker=hang.worker,
        pid=hang.pid,
        batch=hang.batch,
        index=hang.index,
        line=hang.line,
        text=hang.what,
    )
    log.close()


class HangWatch:
    """Looks at the loops of a script once a second, in a thread, and says where they hang."""

    def __init__(
        self,
        folders: list[Path] | Callable[[], list[Path]],
        say: Callable[[str], None] | None = None,
    ):
        """`folders` are those of the runs, or what returns them by now."""
        self.folders = folders
        self.say = say or _say
        self.ended = _thread.allocate_lock()
        self.last: Hang | None = None  # that was found, be it over or not
        self.due_s = 0.0  # of a hang that goes on, when it is said again
        self.hanging = False

    def __enter__(self) -> HangWatch:
        self.ended.acquire()
        # not of `threading`: the user's list of threads stays as it is
        _thread.start_new_thread(self._watch, ())
        return self

    def __exit__(self, *_error: Any) -> None:
        self.ended.release()

    def _watch(self) -> None:
        while not self.ended.acquire(timeout=LOOK_S):  # no time.sleep: programs replace it
            with contextlib.suppress(Exception):
                self.look(now_ns())

    def look(self, now: int) -> None:
        """Look once."""
        folders = self.folders() if callable(self.folders) else self.folders
        found = hang_in(folders, now)
        if found is None:
            if self.hanging and self.last is not None:
                self.say(f"it moves again, after more than {self.last.seconds:.0f} s.")
            self.hanging = False
            self.due_s = 0.0
            return
        self.last = found
        self.hanging = True
        if found.seconds >= self.due_s:
            self.due_s = AGAIN_TIMES * found.seconds
            write(found)
            self.say(found.text)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # stderr may be closed
        print(f"labkit.watch: {text}", file=sys.stderr, flush=True)
