"""Which line costs the time: the stack of the main thread is noted 50 times a second.

No system call of the user's is ever interrupted: C code that sleeps, polls or pauses would return
early. So the main thread is signalled (SIGURG) by a timer on its *user-mode* CPU time only: the
kernel sends it when a tick finds the thread computing, not in a system call. Python's handler runs
in the main thread between two instructions. While the thread is off the core, or the system works
for it, a thread of ours looks at its stack: such a call has let go of the GIL and stands still.

A sample counts for the time of its own sort since the sample before: user-mode CPU time, CPU time
in the system, or time off the core. The kernel's clocks tell these apart whenever a sample is due.

A sample is [t_ns, weight_ns, place]. A place is written once: [kind, within, file, line, function,
call, site]: the kind of work, whether it was within an "item" or a "collate" of the loader, the
deepest line of the user's own code, what that line was calling, and where in the loop itself that
was ([file, line, function], or null).
"""

from __future__ import annotations

import _thread
import contextlib
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
from labkit.bench.loader_hook import hook_fetchers
from labkit.bench.loader_work import LoaderWork
from labkit.bench.main_thread import MainThread, Timer
from labkit.bench.stack import Place, Where
from labkit.bench.user_loop import knobs_of
from labkit.process.events import EventLog, now_ns

PERIOD_S = 0.02  # between samples
EARLY_S = 0.01  # and between the first EARLY of them, 5 s, so that a short script has enough: of
EARLY = 500  # 400, a share of a half is known to 2.5 points
MOST_SAMPLES = 100_000  # half an hour of them: 4 MB in the log
LONGEST_NS = 2_000_000_000  # that a sample may stand for: a laptop that slept is no slow line
LATE_NS = 1_000_000  # our thread waited for the GIL: the main thread had it, and has moved on
MUCH_NS = 200_000_000  # of time without a sample, for which a late one is taken all the same
LEAST_NS = 5_000_000  # in the system, that is looked for
FLUSH_NS = 500_000_000  # a process that is killed loses no more
WATCHED = "watched"  # a file in the run's folder, there while the run goes on
OF_TORCHS_LOADER = "torch.utils.data._utils"
NOT_THE_CAUSE = (OF_TORCHS_LOADER, "torch.utils.data.dataloader", "labkit.")


class Sampler:
    """Samples this process's main thread between `start` and `stop`; writes to the log itself."""

    def __init__(self, folder: str | Path, collate: tuple[str, int] | None, until_gone: str = ""):
        """`collate` is where the collate function stands; it stops once `until_gone` is deleted."""
        self.log = EventLog(folder)
        self.collate = collate
        self.pid = os.getpid()
        self.mark = os.path.join(folder, until_gone) if until_gone else ""
        self.rows: list[tuple[int, int, int]] = []
        self.places: dict[tuple[object, ...], int] = {}  # {what a stack was: its number}
        self.met: set[CodeType] = set()  # and its code
        self.fresh: dict[int, Place] = {}  # places that were not written yet
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.framed = False  # a package does, which the user's code called
        self.missing = ""  # why there are no samples
        self.in_use = False  # whether a loop goes on
        self.thread: MainThread | None = None  # while it is sampled
        self.random = random.Random(now_ns())  # our own: no number of the user's is drawn
        self.lock = _thread.allocate_lock()  # of the rows and places
        self.before: dict[str, int] = {}  # what the thread had spent when its time was last placed
        self.taken = 0
        self.due = 0

    def start(self) -> None:
        """Begin to sample, unless that goes on; `missing` says why it could not be."""
        if self.thread is not None or self.taken >= MOST_SAMPLES:
            return
        self.missing = self._why_not()
        if not self.missing:
            try:
                signal.signal(signal.SIGURG, self._in_user_mode)
                signal.siginterrupt(signal.SIGURG, False)
                thread = MainThread()
                self.before = thread.spent_ns()
                self.due = now_ns() + FLUSH_NS
                self.thread = thread
                thread.timer.arm(self._period_s())
                # not of `threading`: the user's list of threads stays as it is
                _thread.start_new_thread(self._look_from_beside, (thread,))
            except (OSError, RuntimeError) as error:
                signal.signal(signal.SIGURG, signal.SIG_DFL)
                self.thread = None
                self.missing = str(error)

    def _period_s(self) -> float:
        """Return 0.5 to 1.5 periods: even ones would keep step with the scheduler."""
        period = EARLY_S if self.taken < EARLY else PERIOD_S
        return period * (0.5 + self.random.random())

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
        """End the sampling, and let go of the signal."""
        thread = self.thread
        self.thread = None
        if thread is not None and self.pid == os.getpid():
            thread.timer.delete()
            thread.sampled.release()
            with contextlib.suppress(ValueError):  # in another thread
                if signal.getsignal(signal.SIGURG) == self._in_user_mode:
                    signal.signal(signal.SIGURG, signal.SIG_DFL)

    def _in_user_mode(self, _signal: int, frame: FrameType | None) -> None:
        """Note where the main thread computes; the kernel found it there."""
        thread = self.thread
        if thread is None or frame is None or self.pid != os.getpid():
            return
        if self.lock.acquire(blocking=False):  # else its time goes to the next sample
            try:
                self._take(thread, "user", frame)
            finally:
                self.lock.release()
        if self.thread is thread and self.taken < MOST_SAMPLES:
            thread.timer.arm(self._period_s())  # only now: samples do not nest

    def _look_from_beside(self, thread: MainThread) -> None:
        """Note where the main thread is off the core or in the system; write what has gathered."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
        tick = Timer(thread.cpu_clock)
        while self.thread is thread and self.taken < MOST_SAMPLES:
            pause_s = self._period_s()
            due = now_ns() + int(pause_s * 1e9)
            if thread.sampled.acquire(timeout=pause_s):  # no time.sleep: programs replace it
                break
            late = now_ns() - due > LATE_NS
            with contextlib.suppress(OSError):  # the thread has just ended
                sort = self._sort(thread, tick, late)
                with self.lock:
                    frame = sys._current_frames().get(thread.ident) if sort else None
                    if frame is not None and self.thread is thread:
                        self._take(thread, sort, frame)
                    del frame  # it would keep the user's variables
            if now_ns() > self.due:
                self.flush()
                if self.mark and not os.path.exists(self.mark):
                    self.stop()  # the run is over; workers that persist go on
        tick.delete()

    def _sort(self, thread: MainThread, tick: Timer, late: bool) -> str:
        """Return which sort of time the main thread spends now; "" for the signal's, or unknown."""
        spent = thread.spent_ns()
        if thread.is_off():
            much = spent["off"] - self.before["off"] > MUCH_NS
            return "off" if much or not late else ""
        system = spent["system"] - self.before["system"] > LEAST_NS
        return "system" if system and thread.is_in_system(tick) else ""

    def _take(self, thread: MainThread, sort: str, frame: FrameType) -> None:
        """Place the time of a sort that passed since its last sample at the stack of `frame`."""
        try:
            spent = thread.spent_ns()[sort]
            weight = min(spent - self.before[sort], LONGEST_NS)
            if weight > 0:  # the kernel's clocks of user and system time go in ticks of 1 to 10 ms
                self.before[sort] = spent
                self.rows.append((now_ns(), weight, self._place(frame)))
                self.taken += 1
        except Exception as error:  # of the user's objects: no loop may end on our account
            self.missing = f"{type(error).__name__}: {error}"
            self.taken = MOST_SAMPLES

    def _place(self, top: FrameType) -> int:
        """Return the number of the place where a stack is; described when first met."""
        key: list[object] = []
        own: FrameType | None = None  # the deepest of the user's
        site: int | None = None
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
        grad = stack.is_grad_on()
        place = (*key, site, grad)
        number = self.places.get(place)
        if number is None:
            number = len(self.places)
            self.places[place] = number
            self.fresh[number] = self._described(top, own, site, grad)
        return number

    def _described(
        self, top: FrameType, own: FrameType | None, site: int | None, grad: bool
    ) -> Place:
        """Describe a stack: `own` is the deepest frame of the user's, `site` the loop's line."""
        frames: list[FrameType] = []  # inside the loop, the deepest first
        at: FrameType | None = top
        while at is not None and at.f_code is not self.loop:
            frames.append(at)
            self.met.add(at.f_code)  # lest another gets its id
            at = at.f_back
        within = [self._within(frame) for frame in frames]
        where = own or top
        if own is None or (own.f_code is self.loop and (any(within) or self.framed)):
            loads = next((number for number, found in enumerate(within) if found), None)
            below = frames[:loads]  # what the loader called, or the loop
            where = _in_package(below) or top
            kind = stack.kind_of_calls(below) or self._kind_and_call(top, own, frames, grad)[0]
            call = stack.call_text(stack.expression(where))
        else:
            kind, call = self._kind_and_call(top, own, frames, grad)
        file = where.f_code.co_filename
        if file in stack.CLOCKS:
            kind = "labkit"  # a process is often put off a core in its system calls
        return Place(
            kind=kind,
            within=next(filter(None, within), ""),
            file=file,
            line=stack.line_of(where),
            function=stack.name_of(where.f_code),
            call=call,
            site=self._site(site),
        )

    def _kind_and_call(
        self, top: FrameType, own: FrameType | None, frames: list[FrameType], grad: bool
    ) -> tuple[str, str]:
        """Return the kind of work that a stack is at, and what the user's line was calling."""
        if own is top:
            kind, call = stack.kind_and_call(top)
        else:
            libraries = frames
            if own is not None and own in frames:
                libraries = frames[: frames.index(own)]
            kind = stack.kind_of_calls(libraries)
            call = stack.call_text(stack.expression(own)) if own is not None else ""
            if kind in ("library", "io") and stack.SAVES.search(call):
                kind = "logging"
        modules = {stack.module_of_frame(frame) for frame in frames}
        in_model = "torch.nn.modules.module" in modules and kind in ("forward", "torch", "library")
        if in_model and not grad and "torch.utils.checkpoint" not in modules:
            kind = "validation"
        return kind, call

    def _site(self, line: int | None) -> Where | None:
        """Return where in the loop itself that was; None where a package runs the loop."""
        if self.loop is None or not line or self.framed:
            return None
        return self.loop.co_filename, line, stack.name_of(self.loop)

    def _within(self, frame: FrameType) -> str:
        module = stack.module_of_frame(frame)
        here = frame.f_code.co_filename, frame.f_code.co_firstlineno
        if module == f"{OF_TORCHS_LOADER}.collate" or here == self.collate:
            return "collate"
        return "item" if module == f"{OF_TORCHS_LOADER}.fetch" else ""

    def flush(self) -> None:
        """Write what has gathered, if anything."""
        if self.pid == os.getpid():  # in a fork the lock may be held for good
            with self.lock:
                self._write()

    def _write(self) -> None:
        self.due = now_ns() + FLUSH_NS
        if self.rows:
            self.log.write("lines", pid=self.pid, places=self.fresh, rows=self.rows)
            self.rows = []
            self.fresh = {}


def _in_package(frames: list[FrameType]) -> FrameType | None:
    """Return the deepest of the frames that is of the package called first; None without one."""
    called: list[tuple[str, FrameType]] = []
    for frame in frames:
        module = stack.module_of_frame(frame)
        if not module.startswith(NOT_THE_CAUSE):
            called.append((module.partition(".")[0], frame))
    if not called:
        return None
    package, first = called[-1]
    if package in ("", "torch"):
        return first
    for inside, frame in called:
        if inside == package and frame.f_code.co_name != "__torch_function__":
            return frame
    return None


@contextlib.contextmanager
def in_workers(
    loader: Any, folder: Path, until_gone: str = WATCHED, work: LoaderWork | None = None
) -> Iterator[None]:
    """Let the workers that a torch DataLoader starts within the block record themselves.

    Of a loader without workers, `work` records what the main process does for its batches.
    """
    workers = knobs_of(loader).get("num_workers")
    if workers:
        own = loader.worker_init_fn
        how = (str(folder), stack.place_of(loader.collate_fn), until_gone)
        loader.worker_init_fn = functools.partial(_record_worker, how, workers, own)
        try:
            yield
        finally:
            loader.worker_init_fn = own
    elif work is not None:
        dataset = loader.dataset
        unhook = hook_fetchers(work, lambda each: each is dataset)
        try:
            yield
        finally:
            unhook()
    else:
        yield


def _record_worker(
    how: tuple[str, tuple[str, int] | None, str],
    workers: int,
    own: Callable[[int], None] | None,
    worker: int,
) -> None:
    """Start to record in a loader's worker process, then do the loader's own `worker_init_fn`."""
    with contextlib.suppress(Exception):
        folder, _, until_gone = how
        torch_loop = sys._getframe(1).f_code
        sampler = Sampler(*how)
        sampler.loop = torch_loop
        sampler.start()
        work = LoaderWork(sampler.log, worker, workers, folder, until_gone)
        hook_fetchers(work, lambda _dataset: sys._getframe(2).f_code is torch_loop)
        util.Finalize(None, sampler.flush, exitpriority=10)
        util.Finalize(None, work.flush, exitpriority=10)
    if own is not None:
        own(worker)
