"""Run a command in our place: the terminal, its signals and its exit code are the command's.

It runs in our process group, where Ctrl-C, Ctrl-Z, `fg` and whatever else is sent to the group
reach it without us. A signal to our process alone is passed on. We stop when it stops, and if we
are killed, so is it (Linux): nobody could end it by the process id that they know.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from types import FrameType

from labkit.process.death_signal import die_with
from labkit.process.events import now_ns
from labkit.process.family import LINUX

GROUP_S = 0.05  # in which a signal reaches every process of a group
# What a process does to itself: a handler that returns would have it do so again, for ever
OWN_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"}
UNCATCHABLE = {"SIGKILL", "SIGSTOP"}
RESTORED = {"SIGPIPE", "SIGXFSZ"}  # that Python ignores, and a program that it starts does not
# Reads three numbers at a time. A signal, 0, 0: it answers with a byte whether that has come.
# 0 and two processes: it continues the first, once that is stopped and the second is not.
WITNESS = """
import os, select, signal, struct

def stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False

while asked := os.read(0, 12):
    number, ours, theirs = struct.unpack("3i", asked)
    if number:
        came = number in signal.sigpending()
        if came:
            signal.sigwait([number])
        os.write(1, bytes([came]))
    while not number and not select.select([0], [], [], 0.05)[0]:
        if stopped(ours) and not stopped(theirs):
            os.kill(ours, signal.SIGCONT)
            break
"""


class Witness:
    """A process beside us in our group: tells a signal sent to the group from one sent to us alone.

    It lets all signals wait, and looks whether one has come. It ends with us.
    """

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WITNESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def _ask(self, number: int, ours: int = 0, theirs: int = 0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(struct.pack("3i", number, ours, theirs))

    def has_seen(self, number: int) -> bool:
        """Return whether a signal that we have received came to the whole group."""
        with contextlib.suppress(OSError):  # it was killed
            self._ask(number)
            assert self.process.stdout is not None
            return self.process.stdout.read(1) == b"\1"
        return False

    def wake_with(self, pid: int) -> None:
        """Have us continued when the process `pid` is, whoever sees to that (Linux)."""
        if LINUX:
            with contextlib.suppress(OSError):
                self._ask(0, os.getpid(), pid)

    def end(self) -> None:
        """End the process beside us."""
        self.process.kill()
        self.process.communicate()  # closes its pipes, and waits


class Foreground:
    """A command that runs in our place, and what we do with the signals that we receive."""

    def __init__(self):
        self.stops_ns: list[tuple[int, int]] = []  # from when to when it was stopped, ns
        self.before = {
            number: signal.getsignal(number) or signal.SIG_DFL
            for number in signal.valid_signals()
            if _name(number) not in OWN_FAULTS | UNCATCHABLE
        }

    def run(self, command: list[str], env: dict[str, str], stdout: int | None) -> int:
        """Run a command to its end; return its exit code, -N where the signal N ended it.

        Raises OSError where it cannot be started.
        """
        if not hasattr(signal, "pthread_sigmask"):  # Windows: all of a console receive a Ctrl-C
            signal.signal(signal.SIGINT, _nothing)
            return subprocess.call(command, stdout=stdout, env=env)
        arrived, waker = os.pipe()
        os.set_blocking(waker, False)
        woken_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.before)
        witness = Witness()  # with our mask: nothing ends it
        try:
            for number in self.before:
                signal.signal(number, _nothing)
            started = self._start(command, env, stdout, mask)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask - {signal.SIGCHLD})
            return self._wait(started, arrived, witness)
        finally:
            witness.end()
            for number, handler in self.before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.set_wakeup_fd(woken_before)
            os.close(arrived)
            os.close(waker)

    def _start(
        self, command: list[str], env: dict[str, str], stdout: int | None, mask: set[int]
    ) -> subprocess.Popen[bytes]:
        """Start a command with the signals, and all but our own descriptors, that we were given."""
        us = os.getpid()

        def begin() -> None:
            die_with(us)
            for number, handler in self.before.items():
                ignored = handler == signal.SIG_IGN and _name(number) not in RESTORED
                signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        return subprocess.Popen(command, stdout=stdout, env=env, close_fds=False, preexec_fn=begin)

    def _wait(self, started: subprocess.Popen[bytes], arrived: int, witness: Witness) -> int:
        """Pass signals on, and stop when it stops, until the command has ended."""
        while True:
            numbers = os.read(arrived, 512)
            if set(numbers) != {signal.SIGCHLD}:
                time.sleep(GROUP_S)
                if select.select([arrived], [], [], 0)[0]:
                    numbers += os.read(arrived, 512)
                numbers = numbers.replace(bytes([signal.SIGCHLD]), b"")
                of_group = {number for number in set(numbers) if witness.has_seen(number)}
                for number in numbers:
                    if number not in of_group:  # else it had that already
                        os.kill(started.pid, number)
            if (ended := self._look(started, witness)) is not None:
                return ended

    def _look(self, started: subprocess.Popen[bytes], witness: Witness) -> int | None:
        """Return the command's exit code, None while it goes on; stop while it is stopped."""
        while True:
            pid, status = os.waitpid(started.pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return None
            if not os.WIFSTOPPED(status):
                started.returncode = os.waitstatus_to_exitcode(status)
                return started.returncode
            began_ns = now_ns()
            witness.wake_with(started.pid)
            os.kill(os.getpid(), signal.SIGSTOP)  # our shell sees us only
            self.stops_ns.append((began_ns, now_ns()))


def hold_closed_streams() -> None:
    """Put nothing in the place of closed standard streams, which our own files would take.

    A command that we start has them closed all the same.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Have a signal change nothing but the bytes that the wakeup descriptor receives."""


def _name(number: int) -> str:
    """Return the name of a signal; "" of most real-time ones."""
    return getattr(number, "name", "")
