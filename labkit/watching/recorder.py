"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; and `epoch` marks the first step of each pass.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import weakref
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import labkit
from labkit.bench import sampler, stack, user_loop
from labkit.process import folders
from labkit.process.events import NO_TOKENS, VERSION, EventLog, line_of, now_ns
from labkit.watching.loader_call import call_of

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


def _in_trainer() -> bool:
    """Return whether Hugging Face's Trainer runs the loop, so that its arguments set the loader."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "transformers.trainer":
            return True
        frame = frame.f_back
    return False


class Recorder:
    """Writes the run of one watched loader into `folder`. Also the process of its `Run`."""

    def __init__(self, folder: Path, loader: Any, model: Any = None):
        """`model`, where it is known, is what the loop trains: its first call is counted."""
        self.folder, self.pid, self.log = Path(folder), os.getpid(), EventLog(folder)
        folders.in_use[self] = self.folder.absolute()
        self.lines: list[str] = []  # of steps, on their way to the log
        self.losses: dict[int, float] = {}  # of steps, where a framework tells them
        self.tokens: dict[int, list[int]] = {}  # of steps of text, and the real ones of them
        self.knobs = user_loop.knobs_of(loader)
        self.length: int | None = None  # batches of a pass, where the loader can tell
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            self.length = len(loader)
        self.tally, self.kind, self.unit = user_loop.Tally(), "", "samples"
        self.clock: user_loop.DeviceClock | None = None
        self.telemetry: Any = None  # its process
        self.sampler = sampler.Sampler(folder, stack.place_of(getattr(loader, "collate_fn", None)))
        self.growth = user_loop.Growth()
        self.padding: list[float] = []  # of the batches that were looked at, the share of it
        self.epoch, self.next, self.first_step, self.warmup = -1, 0, 0, 3
        self._current: Callable[[], Any] = lambda: None  # a reference to the `Pass`
        self.told = ""  # why no stack was sampled, as the log has it
        self.how, self.failed, self.closed, self.opened_ns = "", None, False, now_ns()
        self.call: Any = None  # of the model, whose FLOPs are counted
        if model is not None:
            self.count(model)
        code = None  # of the call that makes the loader
        with contextlib.suppress(Exception):
            code = call_of(loader, model)
        self.log.write(
            "spec", version=VERSION, run=self.folder.name, labkit=labkit.__version__,
            utc=datetime.now(timezone.utc).isoformat(timespec="seconds"), pipeline=self.knobs,
            watched={"loader": type(loader).__name__, "length": self.length,
                     "trainer": _in_trainer(), "code": code},
        )  # fmt: skip
        self.log.write("hello", pid=self.pid)
        (self.folder / sampler.WATCHED).touch()

    def count(self, model: Any) -> None:
        """Count the FLOPs of the next training call of `model`, and of no other one."""
        from labkit.bench.flops import FirstCall  # the loop has imported torch by now

        if self.call is not None:
            self.call.hook.remove()
        self.call = FirstCall(model)

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
            with sampler.in_workers(loader, self.folder):
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
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Write that the steps which follow are of another pass, and sample their lines."""
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
        known = user_loop.counter_for(batch, self.knobs.get("batch_size"))
        self.unit = "samples" if known else "batches"
        count, batches = known or (lambda _batch: 1), itertools.count()

        def looks(batch: Any) -> int:  # now and then, how much of it is padding
            if next(batches) % LOOK_EVERY == 0:
                self.padding.append(user_loop.padding_of(batch) or 0.0)
            return count(batch)

        with contextlib.suppress(Exception):
            return count if user_loop.padding_of(batch) is None else looks
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
        machine, self.clock = user_loop.machine_and_clock(self._add)
        self.kind = machine["kind"]
        in_flight = self.knobs.get("num_workers", 0) * self.knobs.get("prefetch_factor", 0)
        self.warmup = max(3, in_flight)
        self.log.write("machine", **machine)
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit)
        self.log.write("begin", warmup=self.warmup)

    def _add(self, i: int, t: tuple, samples: int, busy: tuple = ()) -> None:
        if i == self.warmup:
            self.tally = user_loop.Tally(self.tally.end)  # without the warm-up
        self.tally.add(t, samples, busy or t[2:])
        loss, tokens = self.losses.pop(i, math.nan), self.tokens.pop(i, NO_TOKENS)
        if i < KEEP_STEPS:
            start, end = busy or (0, 0)
            device = start, start, start, end  # the copy is inside
            self.lines.append(line_of((*device, i + 1, *t, samples, 0, loss, *tokens, i + 1)))

    def _write(self) -> None:
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or "failed" with an `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how, self.sampler.in_use = how, False
        if how == "failed":
            self.fail(error)
        elif how == "exhausted":
            self.log.write("done")
            self.log.write("end", stop=None, code=0)
        else:
            self.log.write("end", stop=how, code=None)

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        if error is self.failed:
            return
        self.failed = error
        if isinstance(error, KeyboardInterrupt):
            self.log.write("end", stop="interrupted", code=None)
        else:
            self.log.write("error", kind=type(error).__name__, message=str(error)[:8_000])
            self.log.write("end", stop=None, code=1)

    def flush(self) -> None:
        """Write what has gathered, and give the device a moment for its last steps."""
        with contextlib.suppress(Exception):  # a device that was lost
            if (current := self.current) is not None:
                current.hand_over()
            if self.clock is not None:
                self.clock.finish()
        self._write()
        self.sampler.flush()
        if (why := self.sampler.missing) != self.told and not self.sampler.taken:
            self.told = why
            self.log.write("no_lines", why=why)
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
        if (current := self.current) is not None:  # somebody still holds the iterator
            current.stop()
            self.end_pass("left early")
        self.sampler.stop()
        self.flush()
        if self.call is not None:
            self.call.hook.remove()
        (self.folder / sampler.WATCHED).unlink(missing_ok=True)
        if self.telemetry is not None:
            self.telemetry.kill()
            self.telemetry.wait()
        self.sampler.log.close()
        self.log.close()
        self.closed = True

    def start_telemetry(self) -> None:
        """Sample the instruments beside the loop, unless that is done already."""
        self.telemetry = self.telemetry or user_loop.telemetry_beside(self.folder)


class Pass:
    """One pass over the loader: hands its batches on, and stamps when, a row of a list for each.

    What is more waits until `_gathered`, when a hundred rows share the cost of cold caches.
    """

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
        except BaseException as error:
            self._end("exhausted" if isinstance(error, StopIteration) else "failed", error)
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
        self.recorder.sampler.claim(sys._getframe(2))
        return self.count(batch)

    def _gathered(self, now: int) -> int:
        """Hand over what has gathered; return when the next batch is asked for."""
        self.due = now + GATHER_NS
        try:
            self.hand_over()
            if not self.on:
                return now
            self.clock = self.recorder.clock  # known only when the first body has run
            if now > self.beat_at:
                self.beat_at = now + BEAT_NS
                self.recorder.growth.look(sys._getframe(2), self.recorder.sampler.loop)
                self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what this took is neither waiting nor body

    def hand_over(self) -> None:
        """Give the recorder what has gathered; once stopped, forget it."""
        rows, self.rows = self.rows, []
        if self.on:
            self.recorder.take(rows)

    def stop(self) -> None:
        """Hand over what has gathered, and stop recording."""
        try:
            self.hand_over()
        finally:
            self.on, self.start, self.clock = False, None, None

    def _end(self, how: str, error: BaseException | None = None) -> None:
        if self.on:
            with contextlib.suppress(Exception):
                self.stop()
                self.recorder.end_pass(how, error)
                if how == "failed":
                    self.count = self._first_count
                self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self.on, self.start, self.clock, self.count = False, None, None, lambda _batch: 0
        say(f"recording stopped: {type(error).__name__}: {error}")

    def __del__(self) -> None:
        if hasattr(self, "on"):
            self._end("left early")  # a break, a return or an exception in the body
