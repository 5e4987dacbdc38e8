"""Says so while a watched loop hangs: which process, since when, on which item, in which line.

What each process of a loop is busy with stands in a small file, which can be read whatever it hangs
in. The line is that of the last stack sampled there.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from labkit.instruments.messages import say
from labkit.stamps.events import FILE_NAME, EventLog, events_named, now_ns, private
from labkit.stamps.shared_page import shared_page

PROGRESS = "progress"  # the files' names begin so; one for each process of the loader
# What a process is busy with: IN_BODY and WAITING are the loop's
IDLE, FETCHING, COLLATING, WAITING, IN_BODY = range(5)
NO_INDEX = -(2**63)
STATE, SINCE, BATCH, INDEX, PID, USUAL = range(6)  # words of a progress file
WORDS = struct.Struct("=6q")

LEAST_S = 10.0  # without any progress: less is not called a hang
LEAST_TIMES = 10.0  # the usual step, without any progress: less is not called a hang
FIRST_S = 30.0  # before there is a usual one: workers start, models compile
BODY_S = 60.0  # in the body of the loop, which may validate or save
AGAIN_TIMES = 6.0  # longer, before it is said again
LOOK_S = 1.0


def progress_words(folder: Path | None, worker: int | str) -> memoryview:
    """Return the words for what this process is busy with, which others can read while it hangs.

    `worker` is its number, or "loop" for the loop that takes the batches. Where the file cannot be
    made, or there is no `folder`, nobody reads them.
    """
    memory = memoryview(bytearray(WORDS.size))
    if folder:
        path = os.path.join(folder, f"{PROGRESS}-{worker}")
        with contextlib.suppress(OSError):
            descriptor = private(path, os.O_RDWR | os.O_CREAT)
            try:
                os.write(descriptor, memory)
                memory = shared_page(descriptor, WORDS.size)
            finally:
                os.close(descriptor)
    words = memory.cast("q")
    words[INDEX] = NO_INDEX
    words[PID] = os.getpid()
    words[SINCE] = now_ns()
    return words


def index_word(index: object) -> int:
    """Return the index of an item as a word; of a key, or a number of more than 64 bits, none."""
    number = plain_index(index)
    return number if type(number) is int and abs(number) < -NO_INDEX else NO_INDEX


def plain_index(index: Any) -> int | str:
    """Return an index that is a whole number, else its type: a key may be the name of a person."""
    kind = type(index)
    if kind is int or (kind.__module__ == "numpy" and issubclass(kind, Integral)):
        return int(index)
    return kind.__name__


@dataclass(frozen=True)
class Busy:
    """What a process of a loop was busy with when it was looked at."""

    folder: Path  # of the run
    who: str  # "loop", "main" or the worker's number
    state: int
    since_ns: int
    batch: int
    index: int
    pid: int
    usual_ns: int  # of a step of the loop; 0 where that is not known


def progress_in(folder: Path) -> Iterator[Busy]:
    """Yield what each process of a run is busy with."""
    for path in folder.glob(f"{PROGRESS}-*"):
        with contextlib.suppress(OSError, struct.error):
            who = path.name.removeprefix(f"{PROGRESS}-")
            yield Busy(folder, who, *WORDS.unpack(path.read_bytes()))


@dataclass(frozen=True)
class LiveHang:
    """A loop that does not move."""

    folder: Path
    seconds: float
    pid: int
    text: str  # the sentence about it, with what can be done
    worker: int | None  # that it waits for; None where it is no worker's doing
    index: int | None  # of the item that is fetched

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON types."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}


def hang_in(folders: Iterable[Path], now: int) -> LiveHang | None:
    """Return the hang of a script's loops, each with its folder; None while anything moves."""
    busy = [each for folder in folders for each in progress_in(folder)]
    going = [each for each in busy if each.state != IDLE]
    loops = [each for each in going if each.who == "loop"]
    if not loops:
        return None
    # of nested loops the inner one, which waits; else the one that moved last
    stuck = max(loops, key=lambda each: (each.state == WAITING, each.since_ns))
    seconds = (now - max(each.since_ns for each in busy)) / 1e9
    least = BODY_S if stuck.state == IN_BODY else LEAST_S if stuck.usual_ns else FIRST_S
    if seconds < max(least, LEAST_TIMES * stuck.usual_ns / 1e9):
        return None
    making = [each for each in going if each.folder == stuck.folder and each.who != "loop"]
    if stuck.state == WAITING and making:  # for what has made its batch for longest
        stuck = min(making, key=lambda each: each.since_ns)
    worker = int(stuck.who) if stuck.who.isdigit() else None
    index = None if stuck.index == NO_INDEX else stuck.index
    text = f"nothing has moved for {seconds:.0f} s: {_doing(stuck, worker, index)}"
    return LiveHang(stuck.folder, seconds, stuck.pid, text, worker, index)


def _doing(stuck: Busy, worker: int | None, index: int | None) -> str:
    """Say what a process is busy with that does not move, and what would end such a wait."""
    if stuck.state == WAITING:
        return (
            "the loop waits, and no worker has anything to do: a batch is on its way. Look at the "
            "space in /dev/shm, the pin-memory thread and what a batch holds."
        )
    line = _line_of(stuck)
    if stuck.state == IN_BODY:
        return f"the loop's body goes on{line}."
    name = "the main process (num_workers=0)" if worker is None else f"worker {worker}"
    doing = "collates" if stuck.state == COLLATING else f"fetches item {index} of"
    more = "num_workers=1, " if worker is None else ""
    return (
        f"{name} (pid {stuck.pid}) {doing} batch {stuck.batch}{line}. "
        f"DataLoader({more}timeout=60) turns such a wait into an error."
    )


def _line_of(busy: Busy) -> str:
    """Return ", in" the line that a process was last seen in since; "" where it was not seen.

    A process that holds Python's lock (the GIL) in C code cannot be seen.
    """
    places: dict[str, list[str]] = {}
    seen_ns = place = 0
    for event in events_named("lines", busy.folder / FILE_NAME):
        if event["pid"] == busy.pid:
            places |= event["places"]
            seen_ns, _, place, *_ = event["rows"][-1]
    if seen_ns < busy.since_ns:
        return ""
    _, _, file, number, function, call, *_ = places[str(place)]
    return f", in {Path(file).name}:{number} in {function}" + (f": {call}" if call else "")


class HangWatch:
    """Looks at the loops of a script once a second, in a thread, and says where they hang."""

    def __init__(self, folders: Callable[[], list[Path]], say: Callable[[str], None] = say):
        """`folders` returns those of the runs by now."""
        self.folders = folders
        self.say = say
        self.ended = _thread.allocate_lock()
        self.last: LiveHang | None = None  # that goes on, as it was said last
        self.looked_ns = now_ns()

    def __enter__(self) -> HangWatch:
        self.ended.acquire()
        # not of `threading`: the user's list of threads stays as it is
        _thread.start_new_thread(self._watch, ())
        return self

    def __exit__(self, *_error: object) -> None:
        self.ended.release()

    def _watch(self) -> None:
        while not self.ended.acquire(timeout=LOOK_S):  # no time.sleep: programs replace it
            with contextlib.suppress(Exception):
                self.look(now_ns())

    def look(self, now: int) -> None:
        """Look once; say when a hang begins, while it goes on, and when it is over."""
        was_stopped = now - self.looked_ns > LEAST_S * 1e9  # by Ctrl-Z, and so was the loop
        self.looked_ns = now
        found = None if was_stopped else hang_in(self.folders(), now)
        if found is None:
            if self.last:
                self.say(f"it moves again, after more than {self.last.seconds:.0f} s.")
            self.last = None
        elif self.last is None or found.seconds >= AGAIN_TIMES * self.last.seconds:
            self.last = found
            log = EventLog(found.folder)
            log.write("hang", **found.to_dict())
            log.close()
            self.say(found.text)
