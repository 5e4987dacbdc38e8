"""Says so when a watched loop hangs: which process does not move, since when, at which item.

What each process of a loop is busy with stands in a small file, which can be read whatever it hangs
in.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.stamps.events import EventLog, now_ns, private
from labkit.stamps.shared_page import shared_page

PROGRESS = "progress"  # the files' names begin so; one for each process of the loader
LOOP = "loop"  # of the file of the process that takes the batches
# States: FETCHING is of a process that makes batches, IN_BODY and WAITING are the loop's. Of those
# that do not move the first is what the others wait for
IDLE, IN_BODY, FETCHING, WAITING = range(4)
NO_INDEX = -(2**63)
STATE, SINCE, BATCH, INDEX, PID, USUAL = range(6)  # words of a progress file
WORDS = struct.Struct("=6q")

LEAST_S = 60.0  # without any progress: a loop may validate, save, or compile its model
LEAST_TIMES = 10.0  # the usual step, without any progress
LOOK_S = 1.0


def progress_words(folder: Path | None, worker: int | str) -> memoryview:
    """Return the words for what this process is busy with, which others can read while it hangs.

    `worker` is its number, or `LOOP` for the loop that takes the batches. Where the file cannot be
    made, or there is no `folder`, nobody reads them.
    """
    memory = memoryview(bytearray(WORDS.size))
    if folder:
        path = os.path.join(folder, f"{PROGRESS}-{worker}")
        with contextlib.suppress(OSError), open(path, "w+b", 0, opener=private) as file:
            file.write(memory)
            memory = shared_page(file.fileno(), WORDS.size)
    words = memory.cast("q")
    words[INDEX] = NO_INDEX
    words[PID] = os.getpid()
    words[SINCE] = now_ns()
    return words


def index_word(index: Any) -> int:
    """Return the index of an item as a word; `NO_INDEX` of a key: it may be a person's name."""
    return index if type(index) is int and abs(index) < -NO_INDEX else NO_INDEX


def hang_in(folders: list[Path], now: int) -> tuple[Path, dict[str, Any]] | None:
    """Return the hang of a script's loops, each with its folder; None while anything moves.

    It is the run's folder, and the `hang` event: `seconds`, the `text` to say, and the `worker`
    that is waited for, None where it is none.
    """
    files = [path for folder in folders for path in folder.glob(f"{PROGRESS}-*")]
    words = {path: WORDS.unpack(path.read_bytes()) for path in files}
    going = [path for path in files if words[path][STATE] != IDLE]
    loops = [path for path in going if path.name == f"{PROGRESS}-{LOOP}"]
    if not loops:
        return None
    inner = max(loops, key=lambda path: words[path][SINCE])  # of nested loops
    seconds = (now - max(each[SINCE] for each in words.values())) / 1e9
    if seconds < max(LEAST_S, LEAST_TIMES * words[inner][USUAL] / 1e9):
        return None
    here = [path for path in going if path.parent == inner.parent]
    file = min(here, key=lambda path: words[path])  # by its state, then by since when
    state, _, batch, index, pid, _ = words[file]
    who = file.name.removeprefix(f"{PROGRESS}-")
    worker = int(who) if who.isdigit() else None
    name = "the main process" if worker is None else f"worker {worker}"
    item = "" if index == NO_INDEX else f"item {index} of "
    text = (
        f"nothing has moved for {seconds:.0f} s: "
        + {
            IN_BODY: "the loop's body goes on.",
            WAITING: "the loop waits, and no process makes a batch. Is there space in /dev/shm?",
            FETCHING: f"{name} (pid {pid}) is at {item}batch {batch}. With workers, "
            "DataLoader(timeout=60) turns such a wait into an error.",
        }[state]
    )
    return file.parent, {"seconds": seconds, "text": text, "worker": worker}


class HangWatch:
    """Looks at the loops of a script once a second, in a thread, and says once where they hang."""

    def __init__(self, folders: Callable[[], list[Path]]):
        """`folders` returns those of the runs by now."""
        self.folders = folders
        self.ended = _thread.allocate_lock()
        self.last: tuple[Path, dict[str, Any]] | None = None  # that goes on

    def __enter__(self) -> HangWatch:
        self.ended.acquire()
        # not of `threading`: the user's list of threads stays as it is
        _thread.start_new_thread(self._watch, ())
        return self

    def __exit__(self, *_error: object) -> None:
        self.ended.release()

    def _watch(self) -> None:
        looks = 0  # that have found it
        while not self.ended.acquire(timeout=LOOK_S):  # no time.sleep: programs replace it
            with contextlib.suppress(Exception):
                self.last = hang_in(self.folders(), now_ns())
                looks = looks + 1 if self.last else 0
                if self.last and looks == 2:  # at the first after Ctrl-Z the loop had no time yet
                    folder, event = self.last
                    log = EventLog(folder)
                    log.write("hang", **event)
                    log.close()
                    say(event["text"])


def say(text: str, by: str = "labkit.watch") -> None:
    """Say something on stderr, where that is open; stdout is the script's."""
    if sys.stderr is not None:  # else it would be printed on stdout
        with contextlib.suppress(Exception):  # it may be closed by now
            print(f"{by}: {text}", file=sys.stderr, flush=True)
