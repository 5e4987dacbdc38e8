"""Sets up, in each worker of a loader, what samples its lines and times its items."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util

from labkit.bench import loader_hook
from labkit.bench.before_calls import Before, held
from labkit.bench.loader_hook import HOOKS, Recording
from labkit.bench.loader_knobs import torch_loader
from labkit.bench.loader_work import LoaderWork
from labkit.bench.sampler import Sampler
from labkit.bench.worker_state import WorkerState


@contextlib.contextmanager
def in_workers(loader: object, recording: Recording) -> Iterator[None]:
    """Let the processes that prepare a torch DataLoader's batches record themselves.

    That is what iterators which begin within the block have: their workers, or the main process.
    """
    number = id(torch_loader(loader))
    if "torch.utils.data.dataloader" in sys.modules:
        loader_hook.install()
    HOOKS.wanted[number] = recording
    try:
        yield
    finally:
        HOOKS.wanted.pop(number, None)


def _begin(starts: WorkerStart) -> Callable[[int], object]:
    """Begin to record in a loader's worker process; return the loader's own `worker_init_fn`."""
    with contextlib.suppress(Exception):
        starts.record()
    return int if starts.own is None else starts.own  # int does nothing with a worker's number


class WorkerStart:
    """What a recorded loader's workers begin with, in the place of its `worker_init_fn`."""

    def __init__(self, iterator: object, recording: Recording, own: Callable[[int], None] | None):
        self.recording = recording._replace(work=None)  # of the main process, whose memory it maps
        self.collate = held(iterator)["_collate_fn"]
        self.workers = held(iterator)["_num_workers"]
        self.own = own

    __call__ = Before(_begin)

    def record(self) -> None:
        """Begin to record in this worker."""
        folder, _, while_there, start = self.recording
        worker = sys.modules["torch.utils.data._utils.worker"]
        log = None
        if start is not None:
            sampler = Sampler(folder, self.collate, while_there, self.workers)
            sampler.most //= self.workers * start
            sampler.places.loop = worker._worker_loop.__code__
            sampler.start()
            util.Finalize(None, sampler.flush, exitpriority=10)
            log = sampler.log
        info = worker.get_worker_info()
        work = LoaderWork(log, info.id, self.workers, while_there, start or 1)
        work.state = WorkerState(info.dataset)
        loader_hook.install()
        HOOKS.of_worker = work
        util.Finalize(None, work.flush, exitpriority=10)


HOOKS.record_worker = WorkerStart
