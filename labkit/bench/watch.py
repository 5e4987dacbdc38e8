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

from labkit.bench import lines, stack, their_loop
from labkit.process.events import VERSION, EventLog, now_ns

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
TELEMETRY_AFTER_NS = 1_000_000_000  # a loop of a second is not worth another process
LOOK_EVERY = 16  # batches, for their padding
BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second,
MOST_ROWS = 512  # or sooner where they are so short that memory would grow with their rate


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr)


class Recorder:
    """Writes the run of one watched loader into `folder`. Also the process of its `Run`."""

    def __init__(self, folder: Path, loader: Any, version: str):
        self.folder, self.pid, self.log = Path(folder), os.getpid(), EventLog(folder)
        self.lines: list[str] = []  # of steps, on their way to the log
        self.knobs = their_loop.knobs_of(loader)
        self.length: int | None = None  # batches of a pass, where the loader can tell
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            self.length = len(loader)
        self.tally, self.kind, self.unit = their_loop.Tally(), "", "samples"
        self.clock: their_loop.DeviceClock | None = None
        self.telemetry: subprocess.Popen | None = None
        self.sampler = lines.Sampler(folder, stack.place_of(getattr(loader, "collate_fn", None)))
        self.growth = their_loop.Growth()
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

    def iterate(self, loader: Any, start: Callable[[], Any], beat: Any = None, kind: Any = None):
        """Return what hands on the batches of the iterator that `start` makes of `loader`."""
        asked = now_ns()
        try:
            with lines.in_workers(loader, self.folder):
                iterator = start()  # here, as without us: draws a seed, starts workers
        except BaseException as error:
            with contextlib.suppress(Exception):
                self.fail(error)
            raise
        try:
            return (kind or Pass)(self, iterator, now_ns() - asked, beat or self.beat)
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iterator

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

    def beat(self, now: int | None) -> None:
        """Look around twice a second; None says that a pass is over."""
        if now is not None and now - self.opened_ns > TELEMETRY_AFTER_NS:
            self.start_telemetry()

    def counter(self, batch: Any) -> Callable[[Any], int]:
        """Return what counts the samples of a batch like this one; 1 a batch where unknown."""
        known = their_loop.counter_for(batch, self.knobs.get("batch_size"))
        self.unit = "samples" if known else "batches"
        count, batches = known or (lambda _batch: 1), itertools.count()

        def looks(batch: Any) -> int:  # now and then, how much of it is padding
            if next(batches) % LOOK_EVERY == 0:
                self.padding.append(their_loop.padding_of(batch) or 0.0)
            return count(batch)

        with contextlib.suppress(Exception):
            return count if their_loop.padding_of(batch) is None else looks
        return count

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
        machine, self.clock = their_loop.machine_and_clock(self._add)
        self.kind = machine["kind"]
        in_flight = self.knobs.get("num_workers", 0) * self.knobs.get("prefetch_factor", 0)
        self.warmup = max(3, in_flight)
        self.log.write("machine", **machine)
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit)
        self.log.write("begin", warmup=self.warmup)

    def _add(self, i: int, t: tuple, samples: int, busy: tuple = (), loss: str = "null"):
        if i == self.warmup:
            self.tally.restart()
        self.tally.add(t, samples, busy or t[2:])
        if i < KEEP_STEPS:
            (a, b, c, d), (start, end) = t, busy or (0, 0)
            device = f',"copy":[{start},{start}],"busy":[{start},{end}]' if busy else ""
            # as `events.line_of`, at half its cost; the loss as text, with what may follow it
            line = f'{{"event":"step","i":{i},"t":[{a},{b},{c},{d}],"n":{samples},"loss":{loss}'
            self.lines.append(f"{line}{device}}}")
        elif i == KEEP_STEPS:
            self.lines.append(f'{{"event":"full","steps":{KEEP_STEPS}}}')

    def _write(self) -> None:
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or with the loader's `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how, self.sampler.in_use = how, False
        if error is not None:
            self.fail(error)
        elif how == "exhausted":
            self.log.write("done")
            self.log.write("end", stop=None, code=0)
        else:
            self.log.write("end", stop=how, code=None)

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        failed, self.failed = self.failed, error
        if isinstance(error, KeyboardInterrupt) and error is not failed:
            self.log.write("end", stop="interrupted", code=None)
        elif error is not failed:
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
        self.sampler.flush()
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
        self.sampler.log.close()
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


class Pass:
    """One pass over the loader: hands its batches on, and stamps when, a row of a list for each.

    What is more waits until `_gathered`, when a hundred rows share the cost of cold caches.
    """

    __slots__ = (
        "recorder", "fetch", "beat", "rows", "due", "beat_at", "asked", "ready", "lead_ns", "count",
        "samples", "start", "clock", "on", "__weakref__",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, iterator: Any, iter_ns: int, beat: Callable):
        """`iter_ns` is what iter(loader) took; `beat(now)` is called now and then."""
        self.recorder, self.fetch, self.beat, self.on = recorder, iterator.__next__, beat, True
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.rows: list[tuple] = []
        self.due = self.beat_at = self.asked = self.samples = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.count, self.start, self.clock = self._first_count, None, recorder.clock
        recorder.begin_pass(self)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        now = now_ns()
        if self.ready:
            end = None if self.start is None else self.clock.mark()
            self.rows.append((self.asked, self.ready, now, self.samples, self.start, end))
            self.ready = 0
            if now > self.due or len(self.rows) >= MOST_ROWS:
                now = self._gathered(now)
        try:
            batch = self.fetch()
        except StopIteration:
            self._end("exhausted")
            raise
        except BaseException as error:
            self._end("failed", error)
            raise
        ready = now_ns()
        self.asked = now
        try:
            self.samples = self.count(batch)
            if self.clock is not None:
                self.start = self.clock.mark()
        except Exception as error:
            self._give_up(error)
        self.ready = ready
        return batch

    def _first_count(self, batch: Any) -> int:
        """Learn how to count samples; set the clock back to before iter(loader)."""
        if not self.on:  # the loader failed and was asked again: the loop skips what it cannot read
            self.recorder.begin_pass(self)
            self.on = True
        self.asked, self.lead_ns = self.asked - self.lead_ns, 0
        self.count = self.recorder.counter(batch)
        if self.recorder.sampler.loop is None:
            self.recorder.sampler.loop = stack.users_code(sys._getframe(2))
        return self.count(batch)

    def _gathered(self, now: int) -> int:
        """Hand over what has gathered; return when the next batch is asked for."""
        rows, self.rows, self.due = self.rows, [], now + GATHER_NS
        if not self.on:
            return now
        try:
            self.recorder.take(rows)
            self.clock = self.recorder.clock  # known only when the first body has run
            if now > self.beat_at:
                self.beat_at = now + BEAT_NS
                self.recorder.growth.look(sys._getframe(2), self.recorder.sampler.loop)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def stop(self) -> None:
        """Hand over what has gathered, and stop recording."""
        rows, self.rows, on, self.on = self.rows, [], self.on, False
        self.start = self.clock = None
        if on:
            self.recorder.take(rows)

    def _end(self, how: str, error: BaseException | None = None) -> None:
        if self.on:
            with contextlib.suppress(Exception):
                self.stop()
                self.recorder.end_pass(how, error)
                if error is not None:
                    self.count = self._first_count
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self.on, self.start, self.clock, self.count = False, None, None, lambda _batch: 0
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self._end("left early")  # a break, a return or an exception in the body
