"""A bench from its start to its exit: it may wait for its run, does it, and writes how it ended.

Its loader's workers end with it, and report each batch that cannot be sent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import multiprocessing
import multiprocessing.queues
import os
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from labkit.orders import Order
from labkit.process.family import die_with
from labkit.process.leftovers import socket_folder
from labkit.stamps.events import SPEC_NAME, EventLog
from labkit.stamps.folder_rights import is_ours
from labkit.stamps.keys import mask_secrets

INTERRUPTED = 130  # exit code of Ctrl-C, as in a shell

MAX_TRACEBACK = 8_000  # characters kept of a traceback

started: list[BaseProcess] = []
# Iterators of loaders. One that is let go of waits up to 5 s for each worker that is not idle
kept_iterators: list[object] = []


def stands_by() -> bool:
    """Whether this process was started ahead of its run."""
    return stat.S_ISFIFO(os.fstat(0).st_mode)


def wait_for_run() -> None:
    """Wait until the supervisor says that the run's spec is there."""
    if stands_by():
        if not os.read(0, 16):
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)


def serve(work: Callable[[Order, Path, EventLog], int | None], place: str = "") -> None:
    """Do `work(order, folder, log)`, write how it ended in `place`; exit with its code, or 0.

    The command line has the run's folder, and the process that this one is not to outlive.
    """
    folder = Path(sys.argv[1])
    die_with(int(sys.argv[2]))
    faulthandler.enable()
    (folder / place).mkdir(exist_ok=True)
    log = EventLog(folder / place)
    code = 1

    def leave(*_: object) -> None:  # at once: every finished step is in the log already
        log.write("stopped")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    use_sockets(socket_folder(os.getpid()))
    try:
        try:
            ended = work(json.loads((folder / SPEC_NAME).read_text()), folder, log)
            if ended is None:
                log.write("done")
            code = ended or 0
        except BaseException as error:
            write_failure(log, error)
    except BaseException as error:  # a worker's death, which torch raises from a signal handler
        write_failure(log, error)
    sys.stderr.flush()
    os._exit(code)  # workers and threads end with the process; the supervisor sees to it


def use_sockets(folder: Path) -> None:
    """Have `multiprocessing` keep its sockets in `folder`, if that is our own.

    Otherwise they are where Python puts them, and not found again after a kill.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_ours(folder):  # another user could have made it first
            config: dict[str, object] = getattr(multiprocessing.current_process(), "_config", {})
            config["tempdir"] = str(folder)


def write_failure(log: EventLog, error: BaseException) -> None:
    """Write the error that ended the run, to its log and to stderr."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise in here too
    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    time.sleep(0.05)  # a connection to a worker breaks a moment before the worker can be waited for
    log.write(
        "error",
        kind=type(error).__name__,
        message=str(error)[:MAX_TRACEBACK],
        traceback=text,
        workers={each.pid: each.exitcode for each in started if each.exitcode},
    )
    sys.stderr.write(mask_secrets(text, []))


def worker_dies_with_bench(_worker_id: int) -> None:
    """DataLoader's `worker_init_fn`: tie a loader worker to the bench that forked it.

    Its queue also reports a batch that cannot be pickled or put into shared memory. Python's own
    prints the error and drops the batch, and the loop waits for it until the loader's time is up.
    """
    bench = multiprocessing.parent_process()
    # A fork server is its workers' parent; it ends when the bench does
    by_server = multiprocessing.get_start_method() == "forkserver"
    if by_server or bench is None or bench.pid is None:
        die_with(os.getppid())
    else:
        die_with(bench.pid)
    _report_errors_of(multiprocessing.queues.Queue)


def _report_errors_of(queues: Any) -> None:
    """Have each queue of this class send on what its thread failed at: Python's own methods."""
    start = queues._start_thread

    def start_reporting(queue: Any) -> None:
        queue._on_queue_feeder_error = functools.partial(_send_error, queue)
        start(queue)

    queues._start_thread = start_reporting


def _send_error(queue: Any, error: Exception, batch: Any) -> None:
    """Put the error in the place of `batch`; called by the queue's thread while handling it."""
    from torch._utils import ExceptionWrapper

    with contextlib.suppress(TypeError, ValueError):  # not a loader's (number, batch)
        number, _ = batch
        where = f"in DataLoader worker process {os.getpid()}"
        queue.put((number, ExceptionWrapper(where=where)))
