"""Run a command in our place, as torchrun does: its signals and its exit code are its own.

It runs in a session of its own, and what somebody sends to us is passed on: so each signal reaches
it once, whether it is sent to us or to all of a terminal. Where we are killed, so is it (Linux):
nobody could end it by the process id that they know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from labkit.process.family import LINUX, die_with

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")


def started(command: list[str], **how: Any) -> subprocess.Popen[Any]:
    """Start a command in a session of its own; where we are killed, so is it (Linux)."""
    us = os.getpid()
    end_with_us = (lambda: die_with(us)) if LINUX else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_us, **how)


def run_in_foreground(command: list[str], env: dict[str, str], stdout: int | None) -> int:
    """Run a command to its end; return its exit code, for a signal 128 and its number.

    Raises ValueError where it cannot be started.
    """
    with contextlib.suppress(Exception):  # a closed stdout
        sys.stdout.flush()
    try:
        script = started(command, stdout=stdout, env=env, close_fds=False)
    except OSError as error:
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}") from None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        script.send_signal(number)

    with contextlib.ExitStack() as restored:
        for number in signal.Signals:  # Windows has few
            # what we ignore, as under nohup, the script ignores as well
            if number.name in PASSED_ON and signal.getsignal(number) != signal.SIG_IGN:
                restored.callback(signal.signal, number, signal.signal(number, pass_on))
        code = script.wait()
    return 128 - code if code < 0 else code
