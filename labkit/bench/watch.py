"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; and `epoch` marks the first step of each pass.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.bench import growth, lines, stack, their_loop
from labkit.process.events import VERSION, EventLog, now_ns

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
STEP = (
    '{"event":"step","i":%d,"t":[%d,%d,%d,%d],"n":%d,"loss":null%s}'  # the loss is the loop's own
)
BUSY = ',"copy":[%d,%d],"busy":[%d,%d]'
TELEMETRY_AFTER_NS = 1_000_000_000  # a loop of a second is not worth another process
LOOK_EVERY = 16  # batches, for their padding
SAMPLES = 50  # of the stack are written at a time


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr)


class Tally:
    """Sums over the steps so far, in ns and of bounded size: what the live line is made from."""

    def __init__(self):
        self.end: int | None = None  # of the step before, on the device
        self.restart()

    def restart(self) -> None:
        """Forget the warm-up."""
        self.steps = self.samples = self.wall = self.busy = self.wait = 0

    def add(self, t: tuple, samples: int, busy: tuple[int, int]) -> None:
        """Add a step: its stamps, and when the device was busy."""
        begin = t[0] if self.end is None else self.end
        start = max(busy[0], begin)
        end = max(busy[1], start)
        self.busy += end - start
        self.wait += min(t[1] - t[0], start - begin)
        self.wall += end - begin
        self.steps, self.samples, self.end = self.steps + 1, self.samples + samples, end


class Recorder:
    """Writes the run of one watched loader into `folder`. Also the process of its `Run`."""

    def __init__(self, folder: Path, loader: Any, version: str):
        self.folder, self.pid, self.log = Path(folder), os.getpid(), EventLog(folder)
        self.lines: list[str] = []  # of steps, on their way to the log
        self.knobs = their_loop.knobs_of(loader)
        self.length: int | None = None  # batches of a pass, where the loader can tell
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            self.length = len(loader)
        self.tally, self.kind, self.unit = Tally(), "", "samples"
        self.clock: their_loop.DeviceClock | None = None
        self.telemetry: subprocess.Popen | None = None
        self.sampler = lines.Sampler(stack.place_of(getattr(loader, "collate_fn", None)))
        self.growth = growth.Growth()
        self.padding: list[float] = []  # of the batches that were looked at, the share of it
        self.epoch, self.next, self.first_step, self.warmup = -1, 0, 0, 3
        self._current: Callable[[], Any] = lambda: None  # a reference to the `Pass`
        self.how, self.failed, self.closed, self.opened_ns = "", None, False, now_ns()
        self.call: Any = None  # a FirstCall, where the model is known
        self.log.write(
            "spec", version=VERSION, run=self.folder.name, labkit=version, pipeline=self.knobs,
            utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            watched={"loader": type(loader).__name__, "length": self.length},
        )  # fmt: skip
        self.log.write("hello", pid=self.pid)
        (self.folder / lines.WATCHED).touch()

    def alive(self) -> bool:
        """Whether more may follow."""
        return not self.closed

    def stop(self) -> None:
        """Raise RuntimeError: the loop is the user's."""
        raise RuntimeError("a watched loop is your own: interrupt it (Ctrl-C, or the stop button).")

    def join(self) -> None:
        """There is no process to wait for."""

    def begin_pass(self, current: Any) -> None:
        """Begin a pass, and stop recording any older one that is not over."""
        if (older := self.current) is not None:
            older.stop()
        self._current = weakref.ref(current)  # its end is seen by its being dropped
        self.epoch += 1
        self.how, self.tally.end, self.first_step = "", None, self.next
        self.log.write("epoch", n=self.epoch, step=self.next)  # goes on, whatever was said before
        self.sampler.start()

    @property
    def current(self) -> Any:
        """The pass that is being recorded, while it goes on."""
        found = self._current()
        return found if found is not None and found.on else None

    def counter(self, batch: Any) -> Callable[[Any], int]:
        """Return what counts the samples of a batch like this one; 1 a batch where unknown."""
        count = their_loop.counter_for(batch, self.knobs.get("batch_size"))
        self.unit = "samples" if count else "batches"
        count = count or (lambda _batch: 1)
        with contextlib.suppress(Exception):
            if their_loop.padding_of(batch) is not None:
                return self._also_padding(count)
        return count

    def _also_padding(self, count: Callable[[Any], int]) -> Callable[[Any], int]:
        """Return `count`, which now and then looks how much of a batch is padding."""
        batches = itertools.count()

        def looks(batch: Any) -> int:
            if next(batches) % LOOK_EVERY == 0:
                self.padding.append(their_loop.padding_of(batch) or 0.0)
            return count(batch)

        return looks

    def take(self, rows: list[tuple]) -> None:
        """Record steps whose body is over: asked, ready, done (ns), samples, events if any."""
        if rows and not self.kind:
            self._begin()
        for asked, ready, done, samples, start, end in rows:
            t, i, self.next = (asked, ready, ready, done), self.next, self.next + 1
            if end is None:
                self._add(i, t, samples)
            else:
                self.clock.add(i, t, samples, start, end)
        if self.clock is not None:
            self.clock.collect()
        if rows and self.call is not None and self.call.given:
            self.call.write(self.log, None if self.unit == "samples" else 1)
            self.call = None
        self._write()

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        device = their_loop.find_device()
        machine = their_loop.describe(device)
        self.kind, self.clock = machine["kind"], their_loop.clock_for(device, self._add)
        in_flight = self.knobs.get("num_workers", 0) * self.knobs.get("prefetch_factor", 0)
        self.warmup = max(3, in_flight)
        self.log.write("machine", **machine)
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit)
        self.log.write("begin", warmup=self.warmup)

    def _add(self, i: int, t: tuple, samples: int, busy: tuple[int, int] | None = None) -> None:
        if i == self.warmup:
            self.tally.restart()
        self.tally.add(t, samples, busy or t[2:])
        if i < KEEP_STEPS:
            device = BUSY % (busy[0], busy[0], *busy) if busy else ""
            self.lines.append(STEP % (i, *t, samples, device))
        elif i == KEEP_STEPS:
            self.lines.append(f'{{"event":"full","steps":{KEEP_STEPS}}}')

    def _write(self) -> None:
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()
        if len(self.sampler.rows) >= SAMPLES:
            self._write_samples()

    def _write_samples(self) -> None:
        if sampled := self.sampler.drain():
            self.log.write_line(sampled)

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or with the loader's `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how, self.sampler.in_use = how, False
        if error is not None:
            self.fail(error)
            return
        if how == "exhausted":
            self.log.write("done")
        stop, code = (None, 0) if how == "exhausted" else (how, None)
        self.log.write("end", stop=stop, code=code)

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        if error is self.failed:
            return
        self.failed = error
        if isinstance(error, KeyboardInterrupt):
            self.log.write("end", stop="interrupted", code=None)
            return
        self.log.write("error", kind=type(error).__name__, message=str(error)[:8_000])
        self.log.write("end", stop=None, code=1)

    def flush(self) -> None:
        """Write what has gathered, and give the device a moment for its last steps."""
        with contextlib.suppress(Exception):  # a device that was lost
            if (current := self.current) is not None:
                rows, current.rows = current.rows, []
                self.take(rows)
            if self.clock is not None:
                self.clock.finish()
        self._write()
        self._write_samples()
        if self.growth.found:
            self.log.write("growth", found=list(self.growth.found.values()))
        if self.padding:
            share = sum(self.padding) / len(self.padding)
            self.log.write("padding", share=round(share, 4), batches=len(self.padding))

    def close(self) -> None:
        """End the telemetry and let go of the log; the record stays."""
        if os.getpid() != self.pid:
            return
        if (current := self.current) is not None:  # somebody still holds the iterator
            current.stop()
            self.end_pass("left early")
        self.sampler.stop()
        self.flush()
        if self.call is not None:
            self.call.hook.remove()
        if self.sampler.missing and not self.sampler.taken:
            self.log.write("no_lines", why=self.sampler.missing)
        (self.folder / lines.WATCHED).unlink(missing_ok=True)
        if self.telemetry is not None:
            self.telemetry.kill()
            self.telemetry.wait()
        self.log.close()
        self.closed = True

    def start_telemetry(self) -> None:
        """Sample the instruments beside the loop, in a process that dies with this one."""
        if self.telemetry is not None or sys.platform != "linux":  # elsewhere it could outlive us
            return
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
        none = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            self.telemetry = subprocess.Popen(
                [sys.executable, "-m", "labkit.bench.telemetry", str(self.pid)],
                stdin=none, stdout=none, stderr=none, cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path}, start_new_session=True,  # no Ctrl-C
            )  # fmt: skip
