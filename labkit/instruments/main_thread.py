"""What the main thread's time goes to, by the kernel's clocks, and a timer that signals it."""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time
from typing import Literal

from labkit.instruments.loader_clocks import ThreadState, time_in_line
from labkit.stamps.events import now_ns

Spent = Literal["user", "system", "off"]
"""How a thread spends time: it computes or waits for a core to do so, the system works for it, or
it sleeps."""

USER_TIME = 1  # Linux's CPUCLOCK_VIRT
OF_A_THREAD = 4  # its CPUCLOCK_PERTHREAD_MASK
TO_THREAD = 4  # and its SIGEV_THREAD_ID
TICK_S = 0.01  # for which a tick of the kernel is waited for, at the most
MUCH_NS = 200_000_000  # of time without a sample, for which a late one is taken all the same
LEAST_NS = 5_000_000  # in the system, that is looked for
MOST_IN_LINE = 4  # times what it computed, in line for a core: four others share that core
LONGEST_NS = 2_000_000_000  # that a sample may stand for: a laptop that slept is no slow line


class Timer:
    """A POSIX timer on a CPU clock that signals the calling thread; no fork inherits it."""

    def __init__(self, clock: int):
        """Make it; raises OSError where the system has none."""
        self.library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self.library, "timer_create"):  # glibc before 2.34
            self.library = ctypes.CDLL("librt.so.1", use_errno=True)
        self.timer = ctypes.c_void_p()
        # struct sigevent: a value of two words, the signal, how, and the thread
        event = (ctypes.c_int * 16)(0, 0, signal.SIGURG, TO_THREAD, threading.get_native_id())
        create = self.library.timer_create
        if create(ctypes.c_int(clock), ctypes.byref(event), ctypes.byref(self.timer)):
            raise OSError(ctypes.get_errno(), "no POSIX timer")

    def arm(self, after_s: float) -> None:
        """Signal once, at the first tick after so long on the clock."""
        after = (ctypes.c_long * 4)(0, 0, 0, max(1, int(after_s * 1e9)))
        self.library.timer_settime(self.timer, 0, ctypes.byref(after), None)

    def delete(self) -> None:
        """Stop it."""
        self.library.timer_delete(self.timer)


class MainThread:
    """The calling thread: what its time went to, and a timer that signals it while it computes.

    To wait for a core counts as "user" time: it is what a thread does that could compute, wherever
    in its code the system has stopped it.
    """

    def __init__(self):
        self.ident = threading.get_ident()
        self.cpu_clock = time.pthread_getcpuclockid(self.ident)
        self.user_clock = (~threading.get_native_id() << 3) | OF_A_THREAD | USER_TIME
        self.timer = Timer(self.user_clock)
        self.line = time_in_line()
        self.state = ThreadState()
        self.sampled = _thread.allocate_lock()  # held while it is: what waits for it wakes at once
        self.sampled.acquire()
        self.placed = self.spent_ns()  # what it had spent when its time was last placed
        self.computed = time.clock_gettime_ns(self.user_clock)  # and its user time then

    def release(self) -> None:
        """End its sampling."""
        self.timer.delete()
        self.sampled.release()
        self.line.close()
        self.state.close()

    def spent_ns(self) -> dict[Spent, int]:
        """Return the time it has spent in each way (ns), "off" from any zero."""
        user = time.clock_gettime_ns(self.user_clock)
        cpu = time.clock_gettime_ns(self.cpu_clock)
        in_line = self.line.now()
        off = now_ns() - cpu - in_line
        return {"user": user + in_line, "system": cpu - user, "off": off}

    def place(self, how: Spent) -> int:
        """Return the time so spent since it was last placed, ns, and count it as placed.

        It may be 0: the kernel's clocks of user and system time go in ticks of 1 to 10 ms.

        A thread that mostly sleeps stands in line each time it wakes, but is seldom seen computing:
        a single sample would stand for all of that time (0.6 of 1.5 s, in a loop of sleeps beside
        busy processes). What exceeds `MOST_IN_LINE` is left out, so that all samples share it.
        """
        spent = self.spent_ns()[how]
        weight = min(spent - self.placed[how], LONGEST_NS)
        if weight > 0:
            self.placed[how] = spent
        if how == "user":
            before, self.computed = self.computed, time.clock_gettime_ns(self.user_clock)
            weight = min(weight, (1 + MOST_IN_LINE) * (self.computed - before))
        return weight

    def spends_now(self, tick: Timer, late: bool) -> Spent | None:
        """Return how it spends its time now; None if it computes, which is the signal's to note.

        None as well where that is not known: the look came `late`.
        """
        spent = self.spent_ns()
        if self._is_off():
            much = spent["off"] - self.placed["off"] > MUCH_NS
            return "off" if much or not late else None
        system = spent["system"] - self.placed["system"] > LEAST_NS
        return "system" if system and self._is_in_system(tick) else None

    def _is_off(self) -> bool:
        """Whether it sleeps."""
        before = time.clock_gettime_ns(self.cpu_clock)
        stands = time.clock_gettime_ns(self.cpu_clock) == before
        return stands and not self.state.is_runnable()

    def _is_in_system(self, tick: Timer) -> bool:
        """Wait for a tick on its core; whether it was in the system then, as the clocks say."""
        before = time.clock_gettime_ns(self.user_clock)
        tick.arm(0.0)
        seen = signal.sigtimedwait([signal.SIGURG], TICK_S)
        return seen is not None and time.clock_gettime_ns(self.user_clock) == before
