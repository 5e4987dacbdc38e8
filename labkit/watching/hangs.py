"""Says so while a watched loop hangs: which process, since when, on which item, in which line.

The processes of a loop keep what they are busy with in small files (`Progress`), which can be read
whatever they hang in. The line is that of the last stack sampled there.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.bench.loader_progress import COLLATING, IDLE, IN_BODY, WAITING, Busy, progress_in
from labkit.process.events import FILE_NAME, MANY, EventLog, events_named, now_ns
from labkit.process.thinning import Thinning
from labkit.watching.messages import say

LEAST_S = 10.0  # without any progress: less is not called a hang
LEAST_TIMES = 10.0  # the usual step, without any progress: less is not called a hang
FIRST_S = 30.0  # before there is a usual one: workers start, models compile
BODY_S = 60.0  # in the body of the loop, which may validate or save
AGAIN_TIMES = 6.0  # longer, before it is said again
LOOK_S = 1.0
ON_ITS_WAY = (
    "the loop waits, and no worker has anything to do: a batch is on its way. Look at the space in "
    "/dev/shm, the pin-memory thread and what a batch holds."
)


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


def hang_in(folders: Iterable[Path], now: int, resumed_ns: int = 0) -> LiveHang | None:
    """Return the hang of a script's loops, each with its folder; None while anything moves.

    What was stopped (Ctrl-Z) until `resumed_ns` could not move before.
    """
    busy = [each for folder in folders for each in progress_in(folder)]
    loops = [each for each in busy if each.who == "loop" and each.state != IDLE]
    if not loops:
        return None
    # of nested loops the inner one, which waits; else the one that moved last
    last = max(loops, key=lambda each: (each.state == WAITING, each.since_ns))
    moved_ns = max(resumed_ns, *(each.since_ns for each in busy))
    seconds = (now - moved_ns) / 1e9
    least = BODY_S if last.state == IN_BODY else LEAST_S if last.usual_ns else FIRST_S
    if seconds < max(least, LEAST_TIMES * last.usual_ns / 1e9):
        return None
    makers = [
        each
        for each in busy
        if each.folder == last.folder and each is not last and each.state != IDLE
    ]
    return _hang_of(last, makers, seconds)


def _hang_of(loop: Busy, makers: list[Busy], seconds: float) -> LiveHang:
    """Return the hang of a loop: in its body, or in what has made its batch for longest."""
    still = f"nothing has moved for {seconds:.0f} s:"
    if loop.state != WAITING:
        line = line_of(loop)
        text = f"{still} the loop's body goes on{_within(line)}."
        return LiveHang(loop.folder, seconds, loop.pid, text, line)
    if not makers:
        return LiveHang(loop.folder, seconds, loop.pid, f"{still} {ON_ITS_WAY}")
    maker = min(makers, key=lambda each: each.since_ns)
    line = line_of(maker)
    worker = int(maker.who) if maker.who.isdigit() else None
    text = f"{still} {_at_work(maker, worker, line)}"
    return LiveHang(maker.folder, seconds, maker.pid, text, line, worker, maker.batch, maker.index)


def _at_work(maker: Busy, worker: int | None, line: str) -> str:
    """Say what a process does that the loop waits for, and what would end such a wait."""
    name = "the main process (num_workers=0)" if worker is None else f"worker {worker}"
    doing = "collates" if maker.state == COLLATING else f"fetches item {maker.index} of"
    made = f"{name} (pid {maker.pid}) {doing} batch {maker.batch}{_within(line)}."
    if worker is None:
        return f"{made} num_workers=1 and timeout=60 turn such a wait into an error."
    return f"{made} DataLoader(timeout=60) turns such a wait into an error."


def _within(line: str) -> str:
    return f", in {line}" if line else ""


@functools.lru_cache(16)  # once for each hang: it reads the whole log
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


def write(hang: LiveHang) -> None:
    """Write a hang into the run's log."""
    values = asdict(hang)
    del values["folder"]
    log = EventLog(hang.folder)
    log.write("hang", **values)
    log.close()


class HangWatch:
    """Looks at the loops of a script once a second, in a thread, and says where they hang."""

    def __init__(
        self,
        folders: list[Path] | Callable[[], list[Path]],
        say: Callable[[str], None] = say,
    ):
        """`folders` are those of the runs, or what returns them by now."""
        self.folders = folders
        self.say = say
        self.ended = _thread.allocate_lock()
        self.last: LiveHang | None = None  # that was found, be it over or not
        self.due_s = 0.0  # of a hang that goes on, when it is said again
        self.hanging = False
        self.looked_ns = now_ns()
        self.resumed_ns = 0
        self.logged = Thinning(MANY)

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
        """Look once."""
        folders = self.folders() if callable(self.folders) else self.folders
        if now - self.looked_ns > LEAST_S * 1e9:  # we were stopped, and so what we look at
            self.resumed_ns = now
        self.looked_ns = now
        found = hang_in(folders, now, self.resumed_ns)
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
            if self.logged.keeps():
                write(found)
            self.say(found.text)
