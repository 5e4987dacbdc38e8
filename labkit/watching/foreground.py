"""Run a command in our place: the terminal, its signals and its exit code are the command's."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from types import FrameType

from labkit.watching.outside import Outside, Sample

# What a scheduler sends to its child
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
GROUP_S = 0.3  # in which a signal reaches every process of a group


class Group:
    """Tells a signal sent to our process group, as Ctrl-C is, from one sent to us alone.

    A process of the group that any signal ends stands beside us; it ends with us as well.
    """

    def __init__(self):
        self.other: subprocess.Popen | None = None
        self._start()

    def _start(self) -> None:
        nowhere = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # no such program: signals are sent on
            self.other = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
            )

    def had_it_too(self) -> bool:
        """Return whether a signal that we have just received came to the whole group."""
        if self.other is None:
            return False
        try:
            self.other.wait(GROUP_S)
        except subprocess.TimeoutExpired:
            return False
        self.end()
        self._start()
        return True

    def end(self) -> None:
        """End the process beside us."""
        if self.other is not None:
            self.other.kill()
            self.other.communicate()  # closes its input, and waits
            self.other = None


def run_in_front(
    command: list[str], env: dict[str, str], quiet_stdout: bool
) -> tuple[int, list[Sample]]:
    """Run a command to its end; return its exit code, and what was seen from outside.

    The exit code is -N where the signal N ended it. Raises ValueError where it cannot be started.
    """
    started: list[subprocess.Popen] = []
    group = Group()

    def send(number: int, _frame: FrameType | None) -> None:
        if group.had_it_too():  # as by Ctrl-C in a terminal: the script decides, and we report
            return
        for child in started:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    before = {}
    for name in PASSED_ON:
        number = getattr(signal, name, None)  # as under nohup: the script inherits SIG_IGN
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, send)
    try:
        sys.stdout.flush()
        stdout = sys.stderr if quiet_stdout else None
        started.append(subprocess.Popen(command, stdout=stdout, env=env))
        seen = None
        with contextlib.suppress(Exception):  # it has ended, or may not be looked at
            seen = Outside(started[0].pid)
        return started[0].wait(), [] if seen is None else seen.stop()
    except OSError as error:
        remedy = "Give the command as a shell takes it: labkit watch -- python train.py"
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}. {remedy}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        group.end()
