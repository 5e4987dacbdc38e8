"""What a failed bench writes: its error, how its workers ended, whether files ran out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback

from labkit.instruments import loader_workers
from labkit.stamps.events import EventLog
from labkit.stamps.keys import masked

FEW_FILES = 6  # left to open: the error may be that there was none
MAX_TRACEBACK = 8_000  # characters kept of a traceback


def write_failure(log: EventLog, error: BaseException) -> None:
    """Write the error that ended the run, to its log and to stderr."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise in here too
    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    workers = loader_workers.started
    files = _open_files_near_limit([os.getpid(), *(each.pid for each in workers if each.pid)])
    time.sleep(0.05)  # a connection to a worker breaks a moment before the worker can be waited for
    log.write(
        "error",
        kind=type(error).__name__,
        message=str(error)[:MAX_TRACEBACK],
        traceback=text,
        workers={worker.pid: worker.exitcode for worker in workers if worker.exitcode},
        files=files,
    )
    sys.stderr.write(masked(text, []))


def _open_files_near_limit(pids: list[int]) -> list[int] | None:
    """Return [open, allowed] of the first process that can hardly open another file; else None."""
    with contextlib.suppress(ImportError):
        import resource

        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for pid in pids:
            with contextlib.suppress(OSError):  # no /proc, or the process is gone
                used = len(os.listdir(f"/proc/{pid}/fd"))
                if used > allowed - FEW_FILES:
                    return [used, allowed]
    return None
