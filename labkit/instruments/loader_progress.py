"""What each process of a loader is busy with, in a small file that others read while it hangs."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from labkit.stamps.events import now_ns, private
from labkit.stamps.shared_page import shared_page

PROGRESS = "progress"  # the files' names begin so; one for each process of the loader
# What a process is busy with: IN_BODY and WAITING are the loop's
IDLE, FETCHING, COLLATING, WAITING, IN_BODY = range(5)
NO_INDEX = -(2**63)
STATE, SINCE, BATCH, INDEX, PID, USUAL = range(6)  # words of a progress file
WORDS = struct.Struct("=6q")


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


@dataclass(frozen=True)
class Busy:
    """What a process of a loop was busy with when it was looked at."""

    folder: Path  # of the run
    who: str  # "loop", "main" or the worker's number
    state: int
    since_ns: int
    batch: int
    index: int | None
    pid: int
    usual_ns: int  # of a step of the loop; 0 where that is not known


def progress_in(folder: Path) -> Iterator[Busy]:
    """Yield what each process of a run is busy with."""
    for path in folder.glob(f"{PROGRESS}-*"):
        with contextlib.suppress(OSError, struct.error):
            state, since, batch, number, pid, usual = WORDS.unpack(path.read_bytes())
            index = None if number == NO_INDEX else number
            who = path.name.removeprefix(f"{PROGRESS}-")
            yield Busy(folder, who, state, since, batch, index, pid, usual)


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
