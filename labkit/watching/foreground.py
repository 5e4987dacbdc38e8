"""Run a command in our place, as torchrun does: its signals and its exit code are its own.

It runs in a session of its own, and what somebody sends to us is passed on: so each signal reaches
it once, whether it is sent to us or to all of a terminal. Where we stop (Ctrl-Z), so does it; where
we are killed, so is it (Linux): nobody could end it by the process id that they know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType

from labkit.process.family import LINUX, die_with
from labkit.stamps.events import now_ns

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")


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
        us = os.getpid()
        try:
            script = subprocess.Popen(
                command,
                stdout=stdout,
                env=env,
                close_fds=False,
                start_new_session=True,
                preexec_fn=(lambda: die_with(us)) if LINUX else None,
            )
        except OSError as error:
            raise ValueError(f"cannot start {command[0]!r}: {error.strerror}") from None

        def pass_on(number: int, _frame: FrameType | None) -> None:
            script.send_signal(number)

        def stop(_number: int, _frame: FrameType | None) -> None:
            began_ns = now_ns()
            os.killpg(script.pid, signal.SIGSTOP)
            os.kill(us, signal.SIGSTOP)
            os.killpg(script.pid, signal.SIGCONT)
            self.stops_ns.append((began_ns, now_ns()))

        handlers = [(name, pass_on) for name in PASSED_ON] + [("SIGTSTP", stop)]
        with contextlib.ExitStack() as restored:
            for name, handler in handlers:
                number = getattr(signal, name, None)  # Windows has few of them
                # what we ignore, as under nohup, the script ignores as well
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    restored.callback(signal.signal, number, signal.signal(number, handler))
            code = script.wait()
        return 128 - code if code < 0 else code
