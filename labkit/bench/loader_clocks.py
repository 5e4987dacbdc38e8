"""What a loader's process is timed with, and the small file that says what it is busy with."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from numbers import Integral
from pathlib import Path

from labkit.process.events import now_ns, private

try:
    import resource
except ImportError:  # Windows
    resource = None

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


class ProcFile:
    """A file of Linux's /proc that is read again and again; it has nothing elsewhere."""

    def __init__(self, path: str):
        self.descriptor = None
        with contextlib.suppress(OSError):
            self.descriptor = os.open(path, os.O_RDONLY)

    def words(self, size: int) -> list[bytes]:
        """Return the words of its first `size` bytes; [] where there is none."""
        if self.descriptor is None:
            return []
        with contextlib.suppress(OSError):  # a kernel or a sandbox that refuses it later
            return os.pread(self.descriptor, size, 0).split()
        return []

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class TimeInLine(ProcFile):
    """How long the thread that opens it has stood in line for a core."""

    def __init__(self):
        super().__init__("/proc/thread-self/schedstat")

    def now(self) -> int:
        """Return the time so far, ns; 0 where the system does not tell. It takes 1 µs."""
        words = self.words(64)
        return int(words[1]) if words else 0


class Stopwatch:
    """This thread's time, from lap to lap. A lap takes 1.7 µs."""

    def __init__(self):
        self.queue = TimeInLine()  # elsewhere than on Linux the line looks like waiting
        self.tells = self.queue.descriptor is not None
        self.before = self._read()

    def _read(self) -> tuple[int, int, int, int]:
        in_line_ns = 0
        gave_up = 0
        if resource is not None and self.tells:
            in_line_ns = self.queue.now()
            gave_up = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time_ns(), in_line_ns, gave_up, now_ns()

    def lap(self) -> tuple[int, int, int]:
        """Return the CPU time, the waiting and the standing in line for a core since, ns."""
        before, self.before = self.before, self._read()
        cpu, in_line, gave_up, wall = (
            new - old for old, new in zip(before, self.before, strict=True)
        )
        if self.tells and not gave_up:
            in_line = max(0, wall - cpu)
        return cpu, max(0, wall - cpu - in_line), in_line

    def close(self) -> None:
        """Let go of the file."""
        self.queue.close()


class BytesRead(ProcFile):
    """The bytes that this process has read so far, and those of them that came from storage."""

    def __init__(self):
        super().__init__("/proc/self/io")

    def now(self) -> tuple[int, int]:
        """Return both; (0, 0) where the system does not tell.

        What is read through memory maps counts as coming from storage only.
        """
        words = self.words(256)
        return (int(words[1]), int(words[9])) if words else (0, 0)


class Memory(ProcFile):
    """The memory of this process that is its own, and that which it shares with others."""

    def __init__(self):
        super().__init__("/proc/self/smaps_rollup")

    def now(self) -> list[int] | None:
        """Return both, KiB; None where the system does not tell.

        The kernel walks all pages for it, which takes milliseconds for each GiB.
        """
        words = self.words(4096)
        held = {b"Private": 0, b"Shared": 0}
        for name, kib in zip(words, words[1:], strict=False):
            of = name.partition(b"_")[0]
            if of in held and name.endswith((b"_Clean:", b"_Dirty:")):
                held[of] += int(kib)
        return list(held.values()) if words else None
