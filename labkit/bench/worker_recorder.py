"""Sets up, in each worker of a loader, what samples its lines and times its items."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from labkit.bench.loader_hook import hook_fetchers
from labkit.bench.loader_knobs import knobs_of
from labkit.bench.loader_work import LoaderWork
from labkit.bench.sampler import Sampler


@contextlib.contextmanager
def in_workers(
    loader: Any,
    folder: Path,
    work: LoaderWork | None,
    while_there: Path | None = None,
    start: int | None = 1,
) -> Iterator[None]:
    """Let the workers that a torch DataLoader starts within the block record themselves.

    Of a loader without workers, `work` records what the main process does for its batches. Workers
    that persist record until the file `while_there` is deleted, where one is given. They are the
    loader's workers of that `start`; None: they only tell what they are busy with, and log nothing.
    """
    workers = knobs_of(loader).get("num_workers")
    with contextlib.ExitStack() as undo:
        if workers:
            own = loader.worker_init_fn
            how = (folder, loader.collate_fn, while_there, start)
            loader.worker_init_fn = functools.partial(_record_worker, how, workers, own)
            undo.callback(setattr, loader, "worker_init_fn", own)
        elif work is not None:
            dataset = loader.dataset
            undo.callback(hook_fetchers(work, lambda each: each is dataset))
        yield


def _record_worker(
    how: tuple[Path, object, Path | None, int | None],
    workers: int,
    own: Callable[[int], None] | None,
    worker: int,
) -> None:
    """Start to record in a loader's worker process, then do the loader's own `worker_init_fn`."""
    with contextlib.suppress(Exception):
        folder, collate, while_there, start = how
        torch_loop = sys._getframe(1).f_code
        log = None
        if start is not None:
            sampler = Sampler(folder, collate, while_there, workers)
            sampler.most //= workers * start
            sampler.places.loop = torch_loop
            sampler.start()
            util.Finalize(None, sampler.flush, exitpriority=10)
            log = sampler.log
        work = LoaderWork(log, worker, workers, while_there, start or 1)
        hook_fetchers(work, lambda _dataset: sys._getframe(2).f_code is torch_loop)
        util.Finalize(None, work.flush, exitpriority=10)
    if own is not None:
        own(worker)
