"""Steps on their way to the event log: none lost, and hardly a cost to the loop.

Writing a line after every step costs a loop with cold caches 25 µs. So a step is packed into a
memory-mapped ring (3 µs), which outlives a SIGKILL, and lines are written twenty times a second.
Where the bench is killed in between, whoever clears up calls `recover`. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
from pathlib import Path

from labkit.bench.events import FILE_NAME, EventLog, now_ns

RING_NAME = "steps.ring"
SLOTS = 4096
FLUSH_NS = 50_000_000  # twenty writes a second: a live view of ten frames and more
# number, 4 host stamps, copy start and end, busy start and end, samples, loss, number again: a
# slot whose two numbers differ was being written when the end came
SLOT = struct.Struct("<10qdq")
NONE = -1  # a stamp that this device does not have


class StepLog:
    """Appends finished steps to a run's event log."""

    def __init__(self, log: EventLog, folder: str | Path):
        """Map the ring in `folder`."""
        self.log, self.pending = log, []
        fd = os.open(os.path.join(folder, RING_NAME), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(fd, SLOTS * SLOT.size)
        self.ring = mmap.mmap(fd, SLOTS * SLOT.size)
        os.close(fd)
        self.flush_at = now_ns() + FLUSH_NS

    def add(
        self,
        i: int,
        t: tuple[int, int, int, int],
        samples: int,
        loss: float,
        device: tuple[int, int, int, int] = (NONE,) * 4,
    ) -> None:
        """Record step `i`: host stamps `t` and the device's copy and busy intervals, all ns."""
        step = (i + 1, *t, *device, samples, loss, i + 1)
        SLOT.pack_into(self.ring, (i % SLOTS) * SLOT.size, *step)
        self.pending.append(step)
        if t[3] > self.flush_at or len(self.pending) >= SLOTS // 2:
            self.flush()

    def flush(self) -> None:
        """Write what is pending, in one write."""
        pending, self.pending = self.pending, []
        if pending:
            self.log.write_line("\n".join(map(_line, pending)))
        self.flush_at = now_ns() + FLUSH_NS


def recover(folder: str | Path) -> int:
    """Append the steps that a killed bench had finished but not written; return how many.

    Removes the ring. Call it once every process of the run is gone.
    """
    path = Path(folder) / RING_NAME
    try:
        data = path.read_bytes()
    except OSError:
        return 0
    with contextlib.suppress(OSError):
        path.unlink()
    slots = (SLOT.unpack_from(data, at) for at in range(0, len(data) - SLOT.size + 1, SLOT.size))
    last = _last_written(Path(folder) / FILE_NAME)
    lost = sorted(step for step in slots if step[0] == step[-1] and step[0] - 1 > last)
    if lost:
        EventLog(folder).write_line("\n" + "\n".join(map(_line, lost)))  # after any torn line
    return len(lost)


def _line(step: tuple) -> str:
    number, t0, t1, t2, t3, c0, c1, b0, b1, samples, loss, _ = step
    text = f"{loss:.7g}" if math.isfinite(loss) else "null"  # strict JSON has no NaN
    device = "" if b0 == NONE else f',"copy":[{c0},{c1}],"busy":[{b0},{b1}]'
    return (
        f'{{"event":"step","i":{number - 1},"t":[{t0},{t1},{t2},{t3}],'
        f'"n":{samples},"loss":{text}{device}}}'
    )


def _last_written(path: Path) -> int:
    """The number of the last whole step line in the log; -1 without one."""
    with contextlib.suppress(OSError):
        for line in reversed(path.read_bytes().split(b"\n")):
            if line.startswith(b'{"event":"step"') and line.endswith(b"}"):
                return int(line.split(b'"i":', 1)[1].split(b",", 1)[0])
    return -1
