"""Run a command in our place: the terminal, its signals and its exit code are the command's.

It runs in a process group of its own, which is in front of the terminal where ours was: Ctrl-C and
Ctrl-Z reach it without us. A signal to us, or to our group, is passed on. We stop when a terminal
stops it, and if we are killed, so is it (Linux): nobody could end it by the process id that they
know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType

from labkit.process.family import die_with
from labkit.stamps.events import now_ns

# What a process does to itself: a handler that returns would have it do so again, for ever
OWN_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"}
UNCATCHABLE = {"SIGKILL", "SIGSTOP"}
OURS = {"SIGCHLD", "SIGPIPE", "SIGXFSZ"}  # as we need them or Python ignores them, whoever began us


class Foreground:
    """A command that runs in our place, and what we do with the signals that we receive."""

    def __init__(self):
        self.stops_ns: list[tuple[int, int]] = []  # from when to when it was stopped, ns

    def run(self, command: list[str], env: dict[str, str], stdout: int | None) -> int:
        """Run a command to its end; return its exit code, for a signal 128 and its number.

        Raises ValueError where it cannot be started.
        """
        with contextlib.suppress(Exception):  # a closed stdout
            sys.stdout.flush()
        if not hasattr(os, "setpgid"):  # Windows: all of a console receive a Ctrl-C
            signal.signal(signal.SIGINT, _nothing)
            return subprocess.call(command, stdout=stdout, env=env)
        arrived, waker = os.pipe()
        os.set_blocking(waker, False)
        woken_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        before = {number: signal.signal(number, _nothing) for number in _passed_on()}
        us, group = os.getpid(), os.getpgrp()

        def begin() -> None:
            die_with(us)
            os.setpgid(0, 0)
            _hand_terminal(group, os.getpid())

        try:
            started = subprocess.Popen(
                command, stdout=stdout, env=env, close_fds=False, preexec_fn=begin
            )
            code = self._wait(started, arrived)
            _hand_terminal(started.pid, group)
            return 128 - code if code < 0 else code
        except OSError as error:
            raise ValueError(f"cannot start {command[0]!r}: {error.strerror}") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
            signal.set_wakeup_fd(woken_before)
            os.close(arrived)
            os.close(waker)

    def _wait(self, started: subprocess.Popen[bytes], arrived: int) -> int:
        """Pass signals on, and note when the command stops, until it has ended."""
        stopped_ns = 0
        while True:
            for number in os.read(arrived, 512):
                if number != signal.SIGCHLD:
                    os.kill(started.pid, number)
            pid, status = os.waitpid(started.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and os.WIFSTOPPED(status):
                stopped_ns = now_ns()
                if os.WSTOPSIG(status) != signal.SIGSTOP:  # which somebody sent to it alone
                    _stop_with(started.pid, os.WSTOPSIG(status))
            elif pid and os.WIFCONTINUED(status):
                self.stops_ns.append((stopped_ns, now_ns()))
            elif pid:
                started.returncode = os.waitstatus_to_exitcode(status)
                return started.returncode


def hold_closed_streams() -> None:
    """Put nothing in the place of closed standard streams, which our own files would take.

    A command that we start has them closed all the same.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Have a signal change nothing but the bytes that the wakeup descriptor receives."""


def _stop_with(group: int, number: int) -> None:
    """Stop by the signal that has stopped a command: our shell sees us only. Then let it go on."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, _nothing)
    _hand_terminal(os.getpgrp(), group)
    os.killpg(group, signal.SIGCONT)


def _passed_on() -> set[int]:
    """Return the signals that we pass on: not those that we, and so the command, ignore."""
    names = {number: getattr(number, "name", "") for number in signal.valid_signals()}
    return {
        number
        for number, name in names.items()
        if name not in OWN_FAULTS | UNCATCHABLE
        and (name in OURS or signal.getsignal(number) != signal.SIG_IGN)
    }


def _hand_terminal(giver: int, taker: int) -> None:
    """Put a process group in front of our terminal in the place of another, if that is there."""
    with contextlib.suppress(OSError):  # there is no terminal
        terminal = os.open("/dev/tty", os.O_RDWR)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(terminal) == giver:
                os.tcsetpgrp(terminal, taker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(terminal)
