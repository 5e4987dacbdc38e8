"""What the main thread's time goes to, by the kernel's clocks, and a timer that signals it."""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time
from typing import Literal

from labkit.process.events import now_ns

Spent = Literal["user", "system", "off"]
"""How a thread spends time: it computes, the system works for it, or it is off the core."""

USER_TIME = 1  # Linux's CPUCLOCK_VIRT
OF_A_THREAD = 4  # its CPUCLOCK_PERTHREAD_MASK
TO_THREAD = 4  # and its SIGEV_THREAD_ID
TICK_S = 0.01  # for which a tick of the kernel is waited for, at the most
MUCH_NS = 200_000_000  # of time without a sample, for which a late one is taken all the same
LEAST_NS = 5_000_000  # in the system, that is looked for
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
    """The calling thread: what its time went to, and a timer that signals it while it computes."""

    def __init__(self):
        self.ident = threading.get_ident()
        self.cpu_clock = time.pthread_getcpuclockid(self.ident)
        self.user_clock = (~threading.get_native_id() << 3) | OF_A_THREAD | USER_TIME
        self.timer = Timer(self.user_clock)
        self.sampled = _thread.allocate_lock()  # held while it is: what waits for it wakes at once
        self.sampled.acquire()
        self.placed = self.spent_ns()  # what it had spent when its time was last placed

    def release(self) -> None:
        """End its sampling."""
        self.timer.delete()
        self.sampled.release()

    def spent_ns(self) -> dict[Spent, int]:
        """Return its "user" and "system" CPU time, and that "off" the core (from any zero), ns."""
        user = time.clock_gettime_ns(self.user_clock)
        cpu = time.clock_gettime_ns(self.cpu_clock)
        return {"user": user, "system": cpu - user, "off": now_ns() - cpu}

    def place(self, how: Spent) -> int:
        """Return the time so spent since it was last placed, ns, and count it as placed.

        It may be 0: the kernel's clocks of user and system time go in ticks of 1 to 10 ms.
        """
        spent = self.spent_ns()[how]
        weight = min(spent - self.placed[how], LONGEST_NS)
        if weight > 0:
            self.placed[how] = spent
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
        """Whether it sleeps, or waits for a core."""
        before = time.clock_gettime_ns(self.cpu_clock)
        return time.clock_gettime_ns(self.cpu_clock) == before

    def _is_in_system(self, tick: Timer) -> bool:
        """Wait for a tick on its core; whether it was in the system then, as the clocks say."""
        before = time.clock_gettime_ns(self.user_clock)
        tick.arm(0.0)
        seen = signal.sigtimedwait([signal.SIGURG], TICK_S)
        return seen is not None and time.clock_gettime_ns(self.user_clock) == before
