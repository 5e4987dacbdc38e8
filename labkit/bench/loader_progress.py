"""What each process of a loader is busy with, in a small file that others read while it hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
from numbers import Integral
from pathlib import Path

from labkit.process.events import now_ns, private

INDEX_CHARACTERS = 60  # of an index that is not a whole number
PROGRESS = "progress"  # the files' names begin so; one for each process of the loader
IDLE, FETCHING, COLLATING = range(3)  # what a process is busy with
NO_INDEX = -(2**63)
STATE, SINCE, BATCH, INDEX, PID, USUAL = range(6)  # words of a progress file
WORDS, TEXT_BYTES = 6, 64
PROGRESS_BYTES = WORDS * 8 + TEXT_BYTES


class Progress:
    """What this process is busy with, in a small file that others can read while it hangs."""

    def __init__(self, folder: Path | None, worker: int | str):
        """`worker` is its number, or "loop" for the loop that takes the batches.

        Where the file cannot be made, or there is no `folder`, nobody reads it.
        """
        self.memory: mmap.mmap | bytearray = bytearray(PROGRESS_BYTES)
        if folder:
            path = os.path.join(folder, f"{PROGRESS}-{worker}")
            with contextlib.suppress(OSError):
                descriptor = private(path, os.O_RDWR | os.O_CREAT)
                try:
                    os.write(descriptor, self.memory)
                    self.memory = mmap.mmap(descriptor, PROGRESS_BYTES)
                finally:
                    os.close(descriptor)
        self.words = memoryview(self.memory)[: WORDS * 8].cast("q")
        self.words[INDEX] = NO_INDEX
        self.words[PID] = os.getpid()
        self.words[SINCE] = now_ns()

    def name_item(self, index: object) -> None:
        """Note the index of the item that is being fetched."""
        if type(index) is int:
            try:
                self.words[INDEX] = index
                return
            except ValueError:  # more than 64 bits
                pass
        self.words[INDEX] = NO_INDEX
        text = str(plain_index(index)).encode()[:TEXT_BYTES]
        self.memory[WORDS * 8 :] = text.ljust(TEXT_BYTES, b"\0")


def plain_index(index: object) -> int | str:
    """Return an index as a whole number, or as text of bounded length.

    Of a batch that is fetched at once it names the first.
    """
    if isinstance(index, Integral):
        return int(index)
    if isinstance(index, list):
        return f"{plain_index(index[0])} and {len(index) - 1} more" if index else "none"
    with contextlib.suppress(Exception):  # a key's own __repr__
        return repr(index)[:INDEX_CHARACTERS]
    return type(index).__name__
