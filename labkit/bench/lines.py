"""Which line costs the time: a timer interrupts a thread, and we note its stack.

Fifty times a second, a hundred at first, a timer sends SIGURG, which does nothing where nobody
listens. Python's handler runs in the main thread between two instructions; what a call into C
swallows is made up for: a sample counts for the time since the one before.

A sample is [t_ns, weight_ns, place]. A place is written once: [kind, within, file, line, function,
call, site]: the kind of work, whether it was within an "item" or a "collate" of the loader, the
deepest line of the user's own code, what that line was calling, and where in the loop itself that
was ([file, line, function], or null).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from labkit.bench import stack
from labkit.bench.their_loop import knobs_of
from labkit.process.events import EventLog, now_ns

PERIOD_S, EARLY_S = 0.02, 0.01  # between samples; and for the first EARLY of them, 5 s, so that
EARLY = 500  # a short script has enough: of 400, a share of a half is known to 2.5 points
MOST_SAMPLES = 100_000  # half an hour of them: 4 MB in the log
LONGEST_NS = 2_000_000_000  # that a sample may stand for: a laptop that slept is no slow line
FLUSH_NS = 500_000_000  # a process that is killed loses no more
WATCHED = "watched"  # a file in the run's folder, there while the run goes on
OF_TORCHS_LOADER = "torch.utils.data._utils"
NOT_THE_CAUSE = (OF_TORCHS_LOADER, "torch.utils.data.dataloader", "labkit.")


class Timer:
    """A POSIX timer that signals the calling thread; no fork and no exec inherits it."""

    def __init__(self):
        """Make it; raises OSError where the system has none."""
        self.c = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self.c, "timer_create"):  # glibc before 2.34
            self.c = ctypes.CDLL("librt.so.1", use_errno=True)
        self.id, (to_thread, monotonic) = ctypes.c_void_p(), (4, 1)
        # struct sigevent: a value of two words, the signal, how, and the thread
        event = (ctypes.c_int * 16)(0, 0, signal.SIGURG, to_thread, threading.get_native_id())
        if self.c.timer_create(monotonic, ctypes.byref(event), ctypes.byref(self.id)):
            raise OSError(ctypes.get_errno(), "no POSIX timer")
        self.random = random.Random(now_ns())  # our own: no number of the user's is drawn

    def arm(self, period_s: float) -> None:
        """Signal once, in 0.5 to 1.5 periods: even ones would keep step with the scheduler."""
        after = int(period_s * (0.5 + self.random.random()) * 1e9)
        self.c.timer_settime(self.id, 0, ctypes.byref((ctypes.c_long * 4)(0, 0, 0, after)), None)

    def delete(self) -> None:
        """Stop it."""
        self.c.timer_delete(self.id)


class Sampler:
    """Samples this process's main thread between `start` and `stop`; writes to the log itself."""

    def __init__(self, folder: Any, collate: tuple[str, int] | None, until_gone: str = ""):
        """`collate` is where the collate function stands; it stops once `until_gone` is deleted."""
        self.log, self.collate, self.pid = EventLog(folder), collate, os.getpid()
        self.mark = until_gone and os.path.join(folder, until_gone)
        self.rows: list[tuple[int, int, int]] = []
        self.places, self.met = {}, set()  # {what a stack was: its number}, and its code
        self.fresh: dict[int, list] = {}  # places that were not written yet
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.framed = False  # a package does, which the user's code called
        self.missing, self.in_use = "", False  # why there are no samples; whether a loop goes on
        self.timer: Timer | None = None
        self.taken = self.before = self.due = 0

    def start(self) -> None:
        """Start the timer, unless it runs; `missing` says why it could not be."""
        if self.timer is not None or self.taken >= MOST_SAMPLES:
            return
        self.missing = self._why_not()
        if not self.missing:
            try:
                signal.signal(signal.SIGURG, self._sample)
                signal.siginterrupt(signal.SIGURG, False)  # calls into C go on
                self.before, self.timer = now_ns(), Timer()
                self.due = self.before + FLUSH_NS
                self.timer.arm(EARLY_S)
            except OSError as error:
                signal.signal(signal.SIGURG, signal.SIG_DFL)
                self.missing = str(error)

    def _why_not(self) -> str:
        """Return why no stack can be sampled here and now; "" where it can."""
        if sys.platform != "linux":
            return "stacks are sampled on Linux only"
        if threading.current_thread() is not threading.main_thread():
            return "the loop does not run in the main thread"
        there = signal.getsignal(signal.SIGURG)
        other = getattr(there, "__self__", None)
        if not isinstance(other, Sampler):
            return "" if there == signal.SIG_DFL else "SIGURG is not free"
        if other.pid == os.getpid() and other.in_use:
            return "the loop around this one is sampled"
        other.stop()  # of a loop that is over for now
        return ""

    def claim(self, frame: FrameType) -> None:
        """Sample the loop around `frame`, which has its first batch; other loops are within it."""
        if self.loop is None:
            self.loop, self.framed = stack.loop_around(frame)
        self.start()  # a loop within the first fetch may have had the signal
        self.in_use = True

    def stop(self) -> None:
        """Stop the timer, and let go of the signal."""
        timer, self.timer = self.timer, None
        if timer is not None and self.pid == os.getpid():
            timer.delete()
            with contextlib.suppress(ValueError):  # in another thread
                if signal.getsignal(signal.SIGURG) == self._sample:
                    signal.signal(signal.SIGURG, signal.SIG_DFL)

    def _sample(self, _signal: int, frame: FrameType) -> None:
        if self.timer is None:
            return
        now = now_ns()
        weight, self.before = min(now - self.before, LONGEST_NS), now
        try:
            self.rows.append((now, weight, self._place(frame)))
            self.taken += 1
            if now > self.due and self.mark and not os.path.exists(self.mark):
                self.stop()  # the run is over; workers that persist go on
            elif now > self.due:
                self.flush()
        except Exception as error:  # of the user's objects: no loop may end on our account
            self.missing, self.taken = f"{type(error).__name__}: {error}", MOST_SAMPLES
        finally:  # the next one only now: samples do not nest
            if self.timer is not None and self.taken < MOST_SAMPLES:
                self.timer.arm(EARLY_S if self.taken < EARLY else PERIOD_S)

    def _place(self, top: FrameType) -> int:
        """Return the number of the place where a stack is; described when first met."""
        key, own, site = [], None, None
        at: FrameType | None = top
        while at is not None:
            code = at.f_code
            if own is None:
                key += (id(code), at.f_lasti)  # to hash a code object takes microseconds
                own = at if stack.is_users(code.co_filename) else None
            if code is self.loop:
                site = at.f_lineno
                break
            at = at.f_back
        key = (*key, site, grad := stack.is_grad_on())
        if key not in self.places:
            self.places[key] = len(self.places)
            self.fresh[self.places[key]] = self._described(top, own, site, grad)
        return self.places[key]

    def _described(
        self, top: FrameType, own: FrameType | None, site: int | None, grad: bool
    ) -> list[Any]:
        frames, at = [], top  # inside the loop, the deepest first
        while at is not None and at.f_code is not self.loop:
            frames.append(at)
            self.met.add(at.f_code)  # lest another gets its id
            at = at.f_back
        within = next(filter(None, map(self._within, frames)), "")
        libraries = frames[: frames.index(own)] if own in frames else frames
        if own is top:
            kind, call = stack.kind_and_call(own)
        else:
            kind = stack.kind_of_calls(libraries)
            call = stack.call_text(stack.expression(own)) if own is not None else ""
            if kind in ("library", "io") and stack.SAVES.search(call):
                kind = "logging"
        modules = {stack.module_of_frame(frame) for frame in frames}
        in_model = "torch.nn.modules.module" in modules and kind in ("forward", "torch", "library")
        if in_model and not grad and "torch.utils.checkpoint" not in modules:
            kind = "validation"
        where = own
        if own is None or (own.f_code is self.loop and (within or self.framed)):
            loads = (n for n, frame in enumerate(frames) if self._within(frame))
            below = frames[: next(loads, None)]  # what the loader called, or the loop
            where, kind = _in_package(below) or top, stack.kind_of_calls(below) or kind
            call = stack.call_text(stack.expression(where))
        code, loop = where.f_code, self.loop
        at = None if self.framed or not site else [loop.co_filename, site, stack.name_of(loop)]
        name = stack.name_of(code)
        if code.co_filename == stack.OPEN[0] and name.split(".")[0] in stack.CLOCKS:
            kind = "labkit"  # a process is often put off a core in its system calls
        return [kind, within, code.co_filename, stack.line_of(where), name, call, at]

    def _within(self, frame: FrameType) -> str:
        module = stack.module_of_frame(frame)
        here = frame.f_code.co_filename, frame.f_code.co_firstlineno
        if module == f"{OF_TORCHS_LOADER}.collate" or here == self.collate:
            return "collate"
        return "item" if module == f"{OF_TORCHS_LOADER}.fetch" else ""

    def flush(self) -> None:
        """Write what has gathered, if anything."""
        self.due = now_ns() + FLUSH_NS  # first: a sample that is taken now does not write as well
        if self.rows:
            (rows, self.rows), (places, self.fresh) = (self.rows, []), (self.fresh, {})
            self.log.write("lines", pid=self.pid, places=places, rows=rows)


def _in_package(frames: list[FrameType]) -> FrameType | None:
    """Return the deepest of the frames that is of the package called first; None without one."""
    modules = [stack.module_of_frame(frame) for frame in frames]
    called = [n for n, name in enumerate(modules) if not name.startswith(NOT_THE_CAUSE)]
    package = modules[called[-1]].partition(".")[0] if called else ""
    if package in ("", "torch"):
        return frames[called[-1]] if called else None
    inside = (frames[n] for n in called if modules[n].partition(".")[0] == package)
    return next((f for f in inside if f.f_code.co_name != "__torch_function__"), None)


@contextlib.contextmanager
def in_workers(loader: Any, folder: Path, until_gone: str = WATCHED) -> Iterator[None]:
    """Let the workers that a torch DataLoader starts within the block sample themselves."""
    if not knobs_of(loader).get("num_workers"):
        yield
        return
    own, how = loader.worker_init_fn, (str(folder), stack.place_of(loader.collate_fn), until_gone)
    loader.worker_init_fn = functools.partial(_sample_worker, how, own)
    try:
        yield
    finally:
        loader.worker_init_fn = own


def _sample_worker(how: tuple[Any, ...], own: Callable | None, worker: int) -> None:
    """Start sampling in a loader's worker process, then do the loader's own `worker_init_fn`."""
    with contextlib.suppress(Exception):
        sampler = Sampler(*how)
        sampler.loop = sys._getframe(1).f_code  # torch's own loop of a worker
        sampler.start()
        util.Finalize(None, sampler.flush, exitpriority=10)
    if own is not None:
        own(worker)
