"""The process above a supervisor: of the two, each ends the run if the other is killed.

Linux gives the children of a process that dies to the nearest "subreaper" above it, whatever their
session, environment or open files. So whatever a run has started is found below the one that is
left. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from labkit.process import family

PR_SET_CHILD_SUBREAPER = 36  # Linux, prctl(2)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies, double forks included."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def go_on_guarded() -> None:
    """Return in a child of this process only; this one waits for it, and ends as it does.

    The child has a SIGHUP when this one is killed.
    """
    adopt_orphans()
    guard = os.getpid()
    supervisor = os.fork()
    if supervisor:
        _wait_for(supervisor)
    os.setsid()
    ctypes.CDLL(None).prctl(family.PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != guard:
        os._exit(1)


def _wait_for(supervisor: int) -> None:
    """Pass on a request to stop; if the supervisor is killed, end what it leaves. Never returns."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(supervisor, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if code:  # else what it has started since the run's end may stay
        family.end_all(os.getpid(), set())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL takes no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
