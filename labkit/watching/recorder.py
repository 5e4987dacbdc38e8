"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; `epoch` marks the first step of each pass, and `pass` is
written when a pass is over.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from labkit.bench import batch_contents, user_loop
from labkit.bench.device_clock import DeviceClock
from labkit.bench.growth import Growth
from labkit.bench.loader_clocks import PROGRESS, SINCE, STATE, USUAL, Progress
from labkit.bench.loader_work import LoaderWork
from labkit.bench.own_record import telemetry_beside, write_spec
from labkit.bench.sampler import WATCHED, Sampler, in_workers
from labkit.process import folders
from labkit.process.events import EventLog, line_of, now_ns
from labkit.watching.loader_call import call_of
from labkit.watching.passes import (
    Beat,
    Pass,
    Row,
    length_of,
    one_a_batch,
    say,
    unknown_bytes,
)
from labkit.watching.tally import Tally

if TYPE_CHECKING:
    import torch

    from labkit.bench.flops import FirstCall

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
TELEMETRY_AFTER_NS = 1_000_000_000  # a loop of a second is not worth another process
LOOK_EVERY = 16  # batches, for their padding


def _in_trainer() -> bool:
    """Return whether Hugging Face's Trainer runs the loop, so that its arguments set the loader."""
    frames = traceback.walk_stack(sys._getframe())
    return any(frame.f_globals.get("__name__") == "transformers.trainer" for frame, _ in frames)


class Recorder:
    """Writes the run of one watched loader into `folder`. Also the process of its `Run`."""

    def __init__(
        self,
        folder: Path,
        loader: object,
        model: object = None,
        place: tuple[str, int] | None = None,
    ):
        """`model`, where it is known, is what the loop trains: its first call is counted.

        `place` is the file and line of the loop.
        """
        self.folder = Path(folder)
        self.pid = os.getpid()
        self.log = EventLog(folder)
        folders.in_use[self] = self.folder.absolute()
        self.lines: list[str] = []  # of steps, on their way to the log
        self.losses: dict[int, float] = {}  # of steps, where a framework tells them
        self.bytes: dict[int, int] = {}  # of the batches of steps that wait for their device
        self.knobs = user_loop.knobs_of(loader)
        self.length = length_of(loader)  # batches of a pass
        self.tally = Tally()
        self.kind = ""  # of the device; known when the first body has run
        self.device: torch.device | None = None  # of what an optimizer trains,
        self.weights_dtype: str | None = None  # and its number format
        self.batch_dtype: str | None = None
        self.measure: Callable[[object], int] = unknown_bytes
        self.unit = "samples"
        self.clock: DeviceClock | None = None
        self.telemetry: subprocess.Popen | None = None
        self.sampler = Sampler(folder, getattr(loader, "collate_fn", None))
        self.growth = Growth()
        self.padding: list[float] = []  # of the batches that were looked at, the share of it
        self.epoch = -1
        self.next = 0  # step
        self.first_step = 0
        self.warmup = 3
        self.began_ns = 0  # the pass that goes on
        self.trains = False  # whether an optimizer has made a step within it
        self._current: weakref.ref[Pass] | None = None
        self.how = ""  # how the last pass ended
        self.closed = False
        self.opened_ns = now_ns()
        self.call: FirstCall | None = None  # of the model, whose FLOPs are counted
        if model is not None:
            self.count(model)
        code = None  # of the call that makes the loader
        with contextlib.suppress(Exception):
            code = call_of(loader, model)
        watched = {"loader": type(loader).__name__, "length": self.length}
        watched |= {"trainer": _in_trainer(), "code": code, "place": place and list(place)}
        write_spec(self.log, self.folder.name, self.knobs, watched=watched)
        (self.folder / WATCHED).touch()
        self.words = Progress(self.folder, "loop").words
        self.work: LoaderWork | None = None  # of this process, where the loader has no workers
        if self.knobs.get("num_workers") == 0:
            self.work = LoaderWork(self.log, -1, 1, self.folder, WATCHED)

    def count(self, model: object) -> None:
        """Count the FLOPs of the next training call of `model`, and of no other one."""
        from labkit.bench.flops import FirstCall  # the loop has imported torch by now

        if self.call is not None:
            self.call.remove()
        self.call = FirstCall(cast("torch.nn.Module", model))

    def trained_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has made a step; at first, where and what its weights are."""
        self.trains = True
        if not self.kind and self.device is None:
            with contextlib.suppress(Exception):
                self.device = user_loop.device_of(optimizer.param_groups[0]["params"])
                weights = [each for group in optimizer.param_groups for each in group["params"]]
                self.weights_dtype = batch_contents.dtype_of_most(weights)

    def alive(self) -> bool:
        """Whether more may follow."""
        return not self.closed

    def stop(self) -> None:
        """Raise RuntimeError: the loop is the user's."""
        raise RuntimeError("a watched loop is your own: interrupt it (Ctrl-C, or the stop button).")

    def join(self) -> None:
        """There is no process to wait for."""

    def recording(self, loader: object) -> contextlib.AbstractContextManager[None]:
        """Let the processes that prepare the batches, begun within the block, record themselves."""
        return in_workers(loader, self.folder, WATCHED, self.work)

    def iterate(
        self,
        loader: object,
        start: Callable[[], Iterator[object]],
        beat: Beat | None = None,
        kind: type[Pass] = Pass,
    ) -> Iterator[object]:
        """Return what hands on the batches of the iterator that `start` makes of `loader`."""
        asked = now_ns()
        try:
            with self.recording(loader):
                iterator = start()  # here, as without us: draws a seed, starts workers
        except BaseException as error:
            with contextlib.suppress(Exception):
                self.fail(error)
            raise
        try:
            return kind(self, iterator, now_ns() - asked, beat or self.beat)
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iterator

    def begin_pass(self, current: Pass, began_ns: int) -> None:
        """Begin a pass, and stop recording any older one that is not over."""
        older = self.current
        if older is not None:
            older.stop()
        self._current = weakref.ref(current)  # its end is seen by its being dropped
        self.begin_epoch(began_ns)

    def begin_epoch(self, began_ns: int, counts: bool = True) -> None:
        """Write that the steps which follow are of another pass, and sample their lines.

        It is no new one where it does not count: an old one goes on after a pause.
        """
        self.epoch += counts
        if counts:
            self.began_ns = began_ns
        self.how = ""
        self.tally.end = None
        self.first_step = self.next
        # goes on, whatever was said before
        self.log.write("epoch", n=self.epoch, step=self.next, began=began_ns)
        self.sampler.start()

    def note(self, state: int, now: int) -> None:
        """Note what the loop is busy with from now on."""
        self.words[SINCE] = now
        self.words[STATE] = state

    @property
    def current(self) -> Pass | None:
        """The pass that is being recorded, while it goes on."""
        found = self._current and self._current()
        return found if found is not None and found.on else None

    def beat(self, now: int | None) -> None:
        """Look around twice a second; None says that a pass is over."""
        if now is not None and now - self.opened_ns > TELEMETRY_AFTER_NS:
            self.start_telemetry()

    def counter(self, batch: object) -> Callable[[object], int]:
        """Return what counts the samples of a batch like this one; 1 a batch where unknown.

        From then on, `measure` gives the bytes of such a batch.
        """
        known = batch_contents.counter_for(batch, self.knobs.get("batch_size"))
        self.unit = "samples" if known else "batches"
        count = known or one_a_batch
        batches = itertools.count()
        self.measure = unknown_bytes
        with contextlib.suppress(Exception):
            array, keys = batch_contents.largest_array(batch)
            self.batch_dtype = batch_contents.dtype_of_most([array])
            self.measure = batch_contents.bytes_along(keys)

        def looks(batch: object) -> int:  # now and then, how much of it is padding
            if next(batches) % LOOK_EVERY == 0:
                self.padding.append(batch_contents.padding_of(batch) or 0.0)
            return count(batch)

        with contextlib.suppress(Exception):
            return count if batch_contents.padding_of(batch) is None else looks
        return count

    def take(self, rows: list[Row]) -> None:
        """Record steps whose body is over."""
        if rows and not self.kind:
            self._begin()
        for asked, ready, done, samples, batch_bytes, start, end in rows:
            stamps = (asked, ready, ready, done)
            number = self.next
            self.next += 1
            self.bytes[number] = batch_bytes
            if start is None or end is None or self.clock is None:
                self._add(number, stamps, samples)
            else:
                self.clock.add(number, stamps, samples, start, end)
        if self.clock is not None:
            self.clock.collect()
        if rows and self.call is not None and self.call.given:
            self.call.write(self.log, None if self.unit == "samples" else 1)
            self.call = None
        if self.tally.steps:
            self.words[USUAL] = self.tally.wall // self.tally.steps
        self._write()

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        device = self.device
        if self.call is not None:
            device = user_loop.device_of(self.call.model.parameters()) or device
            with contextlib.suppress(Exception):
                self.weights_dtype = batch_contents.dtype_of_most(self.call.model.parameters())
        machine, self.clock = user_loop.machine_and_clock(self._add, device)
        self.kind = machine["kind"]
        self.warmup = max(3, user_loop.in_flight(self.knobs))
        self.log.write("machine", **machine)
        dtypes = {"weights_dtype": self.weights_dtype, "batch_dtype": self.batch_dtype}
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit, **dtypes)
        self.log.write("begin", warmup=self.warmup)

    def _add(self, number: int, stamps: tuple, samples: int, busy: tuple = ()) -> None:
        if number == self.warmup:
            self.tally = Tally(self.tally.end)  # without the warm-up
        self.tally.add(stamps, samples, busy or stamps[2:])
        loss = self.losses.pop(number, math.nan)
        batch_bytes = self.bytes.pop(number, 0)
        if number < KEEP_STEPS:
            start, end = busy or (0, 0)
            device = (start, start, start, end)  # the copy is inside
            place = number + 1
            slot = (*device, place, *stamps, samples, 0, loss, place)
            self.lines.append(line_of(slot, batch_bytes))

    def _write(self) -> None:
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or "failed" with an `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how = how
        self.sampler.in_use = False
        self.write_pass(now_ns())
        if how == "failed" and error is not None:
            self.fail(error)
        elif how == "exhausted":
            self.log.write("done")
            self.log.write("end", stop=None, code=0)
        else:
            self.log.write("end", stop=how, code=None)

    def write_pass(self, ended_ns: int) -> None:
        """Write when the pass that is over began and ended; nothing where that is known."""
        if self.began_ns:
            self.log.write(
                "pass", n=self.epoch, began=self.began_ns, ended=ended_ns, trains=self.trains
            )
        self.began_ns = 0
        self.trains = False

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        if isinstance(error, KeyboardInterrupt):
            self.log.write("end", stop="interrupted", code=None)
        else:
            self.log.write("error", kind=type(error).__name__, message=str(error)[:8_000])
            self.log.write("end", stop=None, code=1)

    def flush(self) -> None:
        """Write what has gathered, and give the device a moment for its last steps."""
        with contextlib.suppress(Exception):  # a device that was lost
            current = self.current
            if current is not None:
                current.hand_over()
            if self.clock is not None:
                self.clock.finish()
        self._write()
        self.sampler.flush()
        if self.work is not None:
            self.work.flush()
        if self.sampler.missing and not self.sampler.taken:
            self.log.write("no_lines", why=self.sampler.missing)
        if self.growth.found:
            self.log.write("growth", found=list(self.growth.found.values()))
        if self.padding:
            share = sum(self.padding) / len(self.padding)
            self.log.write("padding", share=round(share, 4), batches=len(self.padding))

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the log; the record stays. `error` is what ended the loop, where one did."""
        if os.getpid() != self.pid or self.closed:
            return
        if error is not None and self.how != "exhausted":
            self.fail(error)
        current = self.current
        if current is not None:  # somebody still holds the iterator
            current.stop()
            self.end_pass("left early")
        self.sampler.stop()
        self.flush()
        if self.call is not None:
            self.call.remove()
        if self.work is not None:
            self.work.close()
        (self.folder / WATCHED).unlink(missing_ok=True)
        for left in self.folder.glob(f"{PROGRESS}-*"):
            left.unlink(missing_ok=True)
        if self.telemetry is not None:
            self.telemetry.kill()
            self.telemetry.wait()
        self.sampler.log.close()
        self.log.close()
        self.closed = True

    def start_telemetry(self) -> None:
        """Sample the instruments beside the loop, unless that is done already."""
        self.telemetry = self.telemetry or telemetry_beside(self.folder)
