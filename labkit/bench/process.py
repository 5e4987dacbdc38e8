"""Ties between processes: nobody outlives the one it works for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import multiprocessing
import multiprocessing.queues
import os
import signal
import stat
import sys
from typing import Any

from labkit.process.leftovers import socket_folder

PR_SET_PDEATHSIG = 1  # Linux, prctl(2)
FEW_FILES = 6


def die_with(parent: int) -> None:
    """Ask Linux to SIGKILL this process when `parent` (a pid) dies; elsewhere the supervisor must.

    Exits at once if the parent is already gone.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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


def keep_sockets_in(folder: str | os.PathLike) -> None:
    """Have multiprocessing put its sockets where a killed run's are found again."""
    place = socket_folder(folder, os.getpid())
    with contextlib.suppress(OSError):  # then they are where Python puts them
        if not place.is_dir():
            place.mkdir(mode=0o700)
        multiprocessing.current_process()._config["tempdir"] = str(place)


def short_of_files(pids: list[int]) -> list[int] | None:
    """Return [open, allowed] of one of these processes that has hardly a file left to open.

    What then fails is often something else: a connection that another process cannot answer.
    """
    with contextlib.suppress(ImportError):
        import resource

        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for pid in pids:
            with contextlib.suppress(OSError):  # no /proc, or the process is gone
                used = len(os.listdir(f"/proc/{pid}/fd"))
                if used > allowed - FEW_FILES:
                    return [used, allowed]
    return None


def planted(fault: str | None, dataset: Any, trainer: Any) -> Any:
    """Return the dataset after `fault`, "module:function:argument", was planted in a run.

    It is called as `function(argument, dataset, trainer)` before the loader is made, and returns
    the dataset. Only the fault set, mysteries and tests name one in a spec: no knob reaches it.
    """
    if not fault:
        return dataset
    module, function, argument = fault.split(":", 2)
    return getattr(importlib.import_module(module), function)(argument, dataset, trainer)


def worker_dies_with_bench(_worker_id: int) -> None:
    """DataLoader's `worker_init_fn`: tie a loader worker to the bench that forked it."""
    die_with(multiprocessing.parent_process().pid)
    report_what_cannot_be_sent()


def report_what_cannot_be_sent() -> None:
    """Have this worker's queue report a batch that cannot be pickled or put into shared memory.

    Python's queue prints the error and drops the batch, and the loop waits for it until the
    loader's time is up. Here it gets the error itself, as from any other worker's exception.
    """
    start = multiprocessing.queues.Queue._start_thread

    def start_reporting(queue: multiprocessing.queues.Queue) -> None:
        queue._on_queue_feeder_error = functools.partial(_send_error, queue)
        start(queue)

    multiprocessing.queues.Queue._start_thread = start_reporting


def _send_error(queue: multiprocessing.queues.Queue, error: Exception, batch: Any) -> None:
    """Put the error in the place of `batch`; called by the queue's thread while handling it."""
    from torch._utils import ExceptionWrapper

    with contextlib.suppress(TypeError, ValueError):  # not a loader's (number, batch)
        number, _ = batch
        where = f"in DataLoader worker process {os.getpid()}"
        queue.put((number, ExceptionWrapper(where=where)))
