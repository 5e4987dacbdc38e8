"""Finished steps on their way to the event log.

Writing a line after every step costs a loop with cold caches 25 µs. So a loop only packs the step
into a memory-mapped ring, which outlives a SIGKILL of its process. The ring is drained into the log
a few times a second, the bench's by the supervisor, a watched loop's in its own process; what a
kill has left there is written by `recover`. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, SupportsFloat

from labkit.stamps.events import FILE_NAME, EventLog, events_named, private
from labkit.stamps.shared_page import shared_page

RING_NAME = "steps.ring"
# 2.9 s of 1.4 ms steps: how long the draining process may be held up. A larger ring is cold when
# the loop comes round to it: with 16,384 slots recording a step took 39 µs, with 2,048 12 µs.
SLOTS = 2_048
FEW_SLOTS = 256  # of a loop that drains its own ring when half of it is full: it stays in the cache
# A slot: copy start and end, busy start and end on the device (all 0 where it has none), then the
# words named here, of which the loss is a double. A slot whose two numbers (from 1) differ is being
# written, or was when the end came. The first is written before all else and read after it, the
# last the other way round.
SLOT = struct.Struct("=4q8qdq")
FIRST, ASKED, READY, COPIED, DONE, SAMPLES, CPU, BYTES, LOSS, LAST = range(4, 14)
WORDS = LAST + 1
NO_DEVICE = (0,) * 4
DRAIN_S = 0.05


class FinishedStep(NamedTuple):
    """A step that is over, as the log holds it; moments in ns."""

    number: int  # from 0
    stamps: tuple[int, ...]  # the host asked for data, had it, had issued its copy and the compute
    samples: int
    loss: SupportsFloat  # of a GPU's a tensor, until the device is through with the step
    device: tuple[int, ...] = NO_DEVICE  # from when to when it copied, and was busy
    cpu_ns: int = 0  # that the loop's thread computed; 0 where it was not read
    batch_bytes: int = 0  # of the arrays in its batch; 0 where they are not known

    def line(self, exchange: Sequence[int] = ()) -> str:
        """Return the line of JSON that the log holds.

        `exchange` is of ranks: when the gradients were complete, and when they were averaged.
        """
        number, stamps, samples, loss, device, cpu_ns, batch_bytes = self
        # 9 digits are all of a float32; JSON has no NaN
        shown_loss = f"{float(loss):.9g}" if math.isfinite(float(loss)) else "null"
        asked, ready, copied, done = stamps
        copy_start, copy_end, start, end = device
        cpu = f',"cpu":{cpu_ns}' if cpu_ns else ""
        size = f',"bytes":{batch_bytes}' if batch_bytes else ""
        on_device = f',"copy":[{copy_start},{copy_end}],"busy":[{start},{end}]' if end else ""
        sent = f',"comm":{exchange}' if exchange else ""
        return (
            f'{{"event":"step","i":{number},"t":[{asked},{ready},{copied},{done}],'
            f'"n":{samples},"loss":{shown_loss}{cpu}{size}{on_device}{sent}}}'
        )


class StepRing:
    """The loop's side: packs finished steps into the ring in `folder`."""

    def __init__(self, folder: str | Path, slots: int = SLOTS):
        self.slots = slots
        blank = bytes(slots * SLOT.size)  # written, so that no page fault is left for the loop
        with open(Path(folder) / RING_NAME, "w+b", buffering=0, opener=private) as file:
            if file.write(blank) < len(blank):
                file.truncate(0)  # leaves room to say so
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), RING_NAME)
            self.page = shared_page(file.fileno(), len(blank))
        # Cold caches: storing the words one by one takes a loop 4 µs, Struct.pack_into 7
        self.words = self.page.cast("q")
        self.reals = self.page.cast("d")

    def add(self, step: FinishedStep) -> None:
        """Record a step."""
        number, stamps, samples, loss, device, cpu_ns, batch_bytes = step
        words = self.words
        at = number % self.slots * WORDS
        words[at + FIRST] = number + 1
        if device is not NO_DEVICE:
            words[at], words[at + 1], words[at + 2], words[at + 3] = device
        words[at + ASKED], words[at + READY], words[at + COPIED], words[at + DONE] = stamps
        words[at + SAMPLES] = samples
        words[at + CPU] = cpu_ns
        words[at + BYTES] = batch_bytes
        self.reals[at + LOSS] = float(loss)
        words[at + LAST] = number + 1


class Drain:
    """The other side: moves steps from the ring in `folder` to the event log."""

    def __init__(self, folder: str | Path, log: EventLog):
        self.path = Path(folder) / RING_NAME
        self.log = log
        self.page: memoryview | None = None
        self.next = 0  # the number of the first step that is not in the log yet

    def drain(self) -> list[FinishedStep]:
        """Append the steps that have been finished since the last call, and return them."""
        steps = list(iter(self._next_step, None))
        if steps:
            self.log.write_line("\n".join(step.line() for step in steps))
        return steps

    def _next_step(self) -> FinishedStep | None:
        """Take the next step; None where it is not finished, or the ring is not whole."""
        if self.page is None:
            with contextlib.suppress(OSError, ValueError):
                self.page = _map_ring(self.path)
        if self.page is None:
            return None
        words = self.page.cast("q")
        at = self.next % (len(words) // WORDS) * WORDS
        number = words[at + LAST]  # of a later one, where the ring went round meanwhile
        slot = SLOT.unpack_from(self.page, at * words.itemsize)
        if number <= self.next or words[at + FIRST] != number:
            return None
        self.next = number
        device, stamps = slot[:FIRST], slot[ASKED:SAMPLES]
        on_device = device if device[-1] else NO_DEVICE
        return FinishedStep(
            number - 1, stamps, slot[SAMPLES], slot[LOSS], on_device, slot[CPU], slot[BYTES]
        )

    def remove(self) -> None:
        """Drain what is left and remove the ring. Call it once the loop's process is gone."""
        self.drain()
        self.page = None
        with contextlib.suppress(OSError):
            os.truncate(self.path, 0)  # whoever still has it mapped: a full disk has room again
            self.path.unlink()


def _map_ring(path: Path) -> memoryview | None:
    """Return the ring at `path`; None where it is not whole yet."""
    with open(path, "rb+", opener=private) as file:
        size = os.fstat(file.fileno()).st_size
        is_whole = size in (SLOTS * SLOT.size, FEW_SLOTS * SLOT.size)
        return shared_page(file.fileno(), size) if is_whole else None


def recover(folder: str | Path) -> None:
    """Write the steps that a killed process had not, and remove the ring."""
    drain = Drain(folder, EventLog(folder))
    for step in events_named("step", Path(folder) / FILE_NAME):
        drain.next = step["i"] + 1
    if drain.path.exists():
        drain.log.write_line("")  # ends a line that was torn
        drain.remove()
