"""Says so while a watched loop hangs: which process, since when, on which item, in which line.

The processes of a loop keep what they are busy with in small files (`loader_progress`), which can
be read whatever they hang in. The line is that of the last stack sampled there.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from labkit.instruments.loader_progress import COLLATING, IDLE, IN_BODY, WAITING, Busy, progress_in
from labkit.instruments.messages import say
from labkit.stamps.events import FILE_NAME, EventLog, events_named, now_ns

LEAST_S = 10.0  # without any progress: less is not called a hang
LEAST_TIMES = 10.0  # the usual step, without any progress: less is not called a hang
FIRST_S = 30.0  # before there is a usual one: workers start, models compile
BODY_S = 60.0  # in the body of the loop, which may validate or save
AGAIN_TIMES = 6.0  # longer, before it is said again
LOOK_S = 1.0


@dataclass(frozen=True)
class LiveHang:
    """A loop that does not move."""

    folder: Path
    seconds: float
    pid: int
    text: str  # the sentence about it, with what can be done
    line: str = ""  # "train.py:31 in Items.__getitem__: cv2.resize()"; "" where none was sampled
    worker: int | None = None  # that it waits for; None where it is no worker's doing
    batch: int | None = None
    index: int | str | None = None
    over: bool = False  # whether it has moved again

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON types."""
        values = asdict(self)
        del values["folder"]
        return values


def hang_in(folders: Iterable[Path], now: int) -> LiveHang | None:
    """Return the hang of a script's loops, each with its folder; None while anything moves."""
    busy = [each for folder in folders for each in progress_in(folder)]
    loops = [each for each in busy if each.who == "loop" and each.state != IDLE]
    if not loops:
        return None
    # of nested loops the inner one, which waits; else the one that moved last
    loop = max(loops, key=lambda each: (each.state == WAITING, each.since_ns))
    seconds = (now - max(each.since_ns for each in busy)) / 1e9
    least = BODY_S if loop.state == IN_BODY else LEAST_S if loop.usual_ns else FIRST_S
    if seconds < max(least, LEAST_TIMES * loop.usual_ns / 1e9):
        return None
    if loop.state != WAITING:
        line = line_of(loop)
        return _hang(loop, seconds, f"the loop's body goes on{line and f', in {line}'}.", line)
    making = [
        each
        for each in busy
        if each.folder == loop.folder and each.who != "loop" and each.state != IDLE
    ]
    if making:  # the loop waits for what has made its batch for longest
        return _hang_of_batch(min(making, key=lambda each: each.since_ns), seconds)
    text = "the loop waits, and no worker has anything to do: a batch is on its way. Look at the "
    text += "space in /dev/shm, the pin-memory thread and what a batch holds."
    return _hang(loop, seconds, text)


def _hang_of_batch(busy: Busy, seconds: float) -> LiveHang:
    """Return the hang of a process that makes a batch, and say what would end such a wait."""
    line = line_of(busy)
    worker = int(busy.who) if busy.who.isdigit() else None
    name = "the main process (num_workers=0)" if worker is None else f"worker {worker}"
    doing = "collates" if busy.state == COLLATING else f"fetches item {busy.index} of"
    more = "num_workers=1, " if worker is None else ""
    text = (
        f"{name} (pid {busy.pid}) {doing} batch {busy.batch}{line and f', in {line}'}. "
        f"DataLoader({more}timeout=60) turns such a wait into an error."
    )
    hang = _hang(busy, seconds, text, line)
    return replace(hang, worker=worker, batch=busy.batch, index=busy.index)


def _hang(busy: Busy, seconds: float, what: str, line: str = "") -> LiveHang:
    text = f"nothing has moved for {seconds:.0f} s: {what}"
    return LiveHang(busy.folder, seconds, busy.pid, text, line)


def line_of(busy: Busy) -> str:
    """Return the line that a process was last seen in since; "" where it was not seen.

    A process that holds Python's lock (the GIL) in C code cannot be seen.
    """
    places: dict[str, list[str]] = {}
    seen_ns = 0
    place = 0
    for event in events_named("lines", busy.folder / FILE_NAME):
        if event["pid"] == busy.pid:
            places |= event["places"]
            seen_ns, _, place, *_ = event["rows"][-1]
    if seen_ns < busy.since_ns:
        return ""
    _, _, file, number, function, call, *_ = places[str(place)]
    return f"{Path(file).name}:{number} in {function}" + (f": {call}" if call else "")


class HangWatch:
    """Looks at the loops of a script once a second, in a thread, and says where they hang."""

    def __init__(self, folders: Callable[[], list[Path]], say: Callable[[str], None] = say):
        """`folders` returns those of the runs by now."""
        self.folders = folders
        self.say = say
        self.ended = _thread.allocate_lock()
        self.last: LiveHang | None = None  # that was found, be it over or not
        self.due_s = 0.0  # of a hang that goes on, when it is said again
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
            if self.last and not self.last.over:
                self.say(f"it moves again, after more than {self.last.seconds:.0f} s.")
                self.last = replace(self.last, over=True)
            self.due_s = 0.0
        elif found.seconds >= self.due_s:
            self.last = found
            self.due_s = AGAIN_TIMES * found.seconds
            log = EventLog(found.folder)
            log.write("hang", **found.to_dict())
            log.close()
            self.say(found.text)
