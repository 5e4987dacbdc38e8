"""Which line costs the time: the stack of the main thread is noted 50 times a second.

No system call of the user's is ever interrupted: C code that sleeps, polls or pauses would return
early. So the main thread is signalled (SIGURG) by a timer on its *user-mode* CPU time only: the
kernel sends it when a tick finds the thread computing, not in a system call. Python's handler runs
in the main thread between two instructions. While the thread sleeps, a thread of ours looks at its
stack: it has let go of the GIL and stands still. That thread alone would see Python code only where
the GIL happens to change hands: with image decoders, at the first call behind them.

A sample counts for the time that was spent in its way, computing or asleep, since the one before:
[t_ns, weight_ns, place], a place the number of one of `labkit.instruments.stack`.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from labkit.instruments import stack
from labkit.instruments.loader_work import in_line_ns
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.interrupts import OwnErrors

PERIOD_S = 0.02  # between samples
# The first samples, of some 5 s, are closer, so that a short script has enough of them: with 400, a
# share of a half is known to 2.5 points. The workers of a loader share this number and the periods:
# where each of four on two cores was sampled as often, that alone took 5 % of the cores
EARLY = 500
EARLY_S = 0.01  # between these
MOST_SAMPLES = 100_000  # half an hour of them: 4 MB in the log
LATE_NS = 1_000_000  # our thread waited for the GIL: the main thread had it, and has moved on
FLUSH_NS = 500_000_000  # a process that is killed loses no more
FLAG = "watched"  # a file in the run's folder, there while the run goes on

USER_TIME = 1  # Linux's CPUCLOCK_VIRT
OF_A_THREAD = 4  # its CPUCLOCK_PERTHREAD_MASK
TO_THREAD = 4  # and its SIGEV_THREAD_ID


class MainThread:
    """The calling thread: what its time went to, and a timer that signals it while it computes."""

    def __init__(self):
        """Make the timer, which no fork inherits; raises OSError where the system has none."""
        self.ident = threading.get_ident()
        self.cpu_clock = time.pthread_getcpuclockid(self.ident)
        native = threading.get_native_id()
        user_clock = ctypes.c_int((~native << 3) | OF_A_THREAD | USER_TIME)
        self.library = ctypes.CDLL("librt.so.1", use_errno=True)
        self.timer = ctypes.c_void_p()
        # struct sigevent: a value of two words, the signal, how, and the thread
        event = (ctypes.c_int * 16)(0, 0, signal.SIGURG, TO_THREAD, native)
        if self.library.timer_create(user_clock, ctypes.byref(event), ctypes.byref(self.timer)):
            raise OSError(ctypes.get_errno(), "no POSIX timer")
        self.folder = Path(f"/proc/self/task/{native}")
        self.sampled = _thread.allocate_lock()  # held while it is: what waits for it wakes at once
        self.sampled.acquire()
        self.placed: dict[bool, int] = {}  # by whether it computes: its time when last placed

    def signal_after(self, user_s: float) -> None:
        """Signal it once, at the first tick after it has computed for so long."""
        after = (ctypes.c_long * 4)(0, 0, 0, int(user_s * 1e9))
        self.library.timer_settime(self.timer, 0, ctypes.byref(after), None)

    def release(self) -> None:
        """End its sampling."""
        self.library.timer_delete(self.timer)
        self.sampled.release()

    def is_runnable(self) -> bool:
        """Return whether it computes or waits for a core; False where the system does not tell."""
        with contextlib.suppress(OSError):
            # its number, its name in brackets, its state
            return b") R " in (self.folder / "stat").read_bytes()
        return False

    def place(self, computes: bool) -> int:
        """Return for how long it has computed, or slept, since that was last placed, ns.

        To wait for a core counts as computing: it does so wherever the system has stopped it.
        """
        busy = time.clock_gettime_ns(self.cpu_clock) + in_line_ns(self.folder)
        spent = busy if computes else now_ns() - busy
        weight = spent - self.placed.get(computes, spent)
        self.placed[computes] = spent
        return weight


class Sampler:
    """Samples this process's main thread between `start` and `stop`; writes to the log itself."""

    def __init__(self, folder: Path, while_there: Path | None = None, processes: int = 1):
        """It stops once the file `while_there` is deleted.

        Where several `processes` do the same work, together they are sampled as often as one.
        """
        self.log = EventLog(folder)
        self.places = stack.Places()
        self.pid = os.getpid()
        self.while_there = while_there
        self.processes = processes
        self.rows: list[tuple[int, int, int]] = []
        self.in_use = False  # whether a loop goes on
        self.thread: MainThread | None = None  # while it is sampled
        self.random = random.Random(now_ns())  # our own: no number of the user's is drawn
        self.lock = threading.RLock()  # of the rows and places; a signal may come while it is held
        self.taken = 0
        self.most = MOST_SAMPLES
        self.due = 0

    def start(self) -> None:
        """Begin to sample, unless that goes on, or cannot be."""
        is_over = self.thread is not None or self.taken >= self.most or self.pid != os.getpid()
        if is_over or not self._can_sample():
            return
        try:
            thread = self.thread = MainThread()
            signal.signal(signal.SIGURG, self._in_user_mode)
            signal.siginterrupt(signal.SIGURG, False)
            thread.signal_after(self._period_s())
            # not of `threading`: the user's list of threads stays as it is
            _thread.start_new_thread(self._look_from_beside, (thread,))
        except (OSError, RuntimeError):
            self.stop()

    def _period_s(self) -> float:
        """Return 0.5 to 1.5 periods: even ones would keep step with the scheduler."""
        period = EARLY_S if self.taken * self.processes < EARLY else PERIOD_S
        return period * self.processes * (0.5 + self.random.random())

    def _can_sample(self) -> bool:
        """Whether stacks can be sampled here and now: on Linux, in the main thread, by SIGURG."""
        if sys.platform != "linux" or threading.get_ident() != threading.main_thread().ident:
            return False
        if _is_told_of_signals() or signal.SIGURG in signal.pthread_sigmask(signal.SIG_BLOCK, []):
            return False
        there = signal.getsignal(signal.SIGURG)
        other = getattr(there, "__self__", None)
        if isinstance(other, Sampler) and not (other.in_use and other.pid == os.getpid()):
            other.stop()  # of a loop that is over for now
            return True
        return there == signal.SIG_DFL  # else the loop around this one has it, or the program

    def claim(self, frame: FrameType) -> None:
        """Sample the loop around `frame`, which has its first batch; other loops are within it."""
        self.places.begin(frame)
        self.start()  # a loop within the first fetch may have had the signal
        self.in_use = True

    def stop(self) -> None:
        """End the sampling, and let go of the signal."""
        thread = self.thread
        self.thread = None
        if thread is not None and self.pid == os.getpid():
            thread.release()
            with contextlib.suppress(ValueError):  # in another thread
                if signal.getsignal(signal.SIGURG) == self._in_user_mode:
                    signal.signal(signal.SIGURG, signal.SIG_DFL)

    def _in_user_mode(self, _signal: int, frame: FrameType | None) -> None:
        """Note where the main thread computes; the kernel found it there."""
        thread = self.thread
        if thread is not None and self.pid == os.getpid():
            self._take(thread, frame, computes=True)
            if self.thread is thread and self.taken < self.most:
                thread.signal_after(self._period_s())  # only now: samples do not nest

    def _look_from_beside(self, thread: MainThread) -> None:
        """Note where the main thread sleeps; write what has gathered."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
        with contextlib.suppress(Exception):  # Python would show it on the user's stderr
            while self.thread is thread and self.taken < self.most:
                if signal.getsignal(signal.SIGURG) != self._in_user_mode:
                    break  # the program has its own handler by now
                pause_s = self._period_s()
                due = now_ns() + int(pause_s * 1e9)
                if thread.sampled.acquire(timeout=pause_s):  # no time.sleep: programs replace it
                    break
                if now_ns() < due + LATE_NS and not thread.is_runnable():
                    # No variable here: it would keep the user's
                    self._take(thread, stack.top_frame(thread.ident), computes=False)
                if now_ns() > self.due:
                    self.flush()
                    if self.while_there and not self.while_there.exists():
                        break  # the run is over; workers that persist go on
        if self.thread is thread:
            self.stop()

    def _take(self, thread: MainThread, frame: FrameType | None, computes: bool) -> None:
        """Place the time spent since its last sample of the kind at the stack of `frame`."""
        with self.lock, OwnErrors():  # no loop may end on our account
            weight = thread.place(computes)
            if frame is not None and weight > 0 and self.thread is thread:
                self.rows.append((now_ns(), weight, self.places.number_of(frame)))
                self.taken += 1

    def flush(self) -> None:
        """Write what has gathered, if anything."""
        if self.pid != os.getpid():  # in a fork the lock may be held for good
            return
        with self.lock:
            self.due = now_ns() + FLUSH_NS
            rows, places = self.rows, self.places.fresh
            self.rows, self.places.fresh = [], {}
            if rows:
                self.log.write("lines", pid=self.pid, places=places, rows=rows)


def _is_told_of_signals() -> bool:
    """Return whether the main thread, which asks, has a descriptor that tells it of each signal.

    As an event loop has one, which our signals would wake, or flood while it is kept from reading.
    Python returns it only when it is taken away; whether it warns when full is not told.
    """
    fd = signal.set_wakeup_fd(-1)
    if fd >= 0:
        with contextlib.suppress(ValueError, OSError):  # it was closed
            signal.set_wakeup_fd(fd)
    return fd >= 0
