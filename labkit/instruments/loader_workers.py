"""The loader workers of a bench: they end with it, and report each batch that cannot be sent."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.queues
import os
from multiprocessing.process import BaseProcess
from typing import Any

from labkit.process.family import die_with

started: list[BaseProcess] = []
# Iterators of loaders. One that is let go of waits up to 5 s for each worker that is not idle
kept_iterators: list[object] = []


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
