"""Times what a DataLoader does for its batches, in the processes that prepare them.

In each worker the lines are sampled as well.

torch makes a "fetcher" wherever a loader prepares batches: in each worker, and in the main process
where there are no workers. There the fetcher is given stand-ins for the dataset and the collate
function, which tell of the calls to them and are gone before these are made. The loader, its
`dataset` and `get_worker_info().dataset` stay the user's own objects, whose class nothing is
asked of.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from labkit.instruments import stack
from labkit.instruments.before_calls import Before, Call, OnSet, held
from labkit.instruments.loader_knobs import torch_loader
from labkit.instruments.loader_work import MOST_ROWS, STARTS, LoaderWork
from labkit.instruments.sampler import Sampler
from labkit.stamps.interrupts import OwnErrors


class Recording(NamedTuple):
    """Where the processes of a loader record what they do for its batches."""

    folder: Path
    work: LoaderWork | None  # of the main process, where there are no workers
    while_there: Path | None = None  # a file: workers that persist record until it is deleted
    start: int | None = 1  # which of its workers' starts it is; None: they log nothing


class LoaderHooks:
    """What is recorded of the torch iterators that this process begins."""

    def __init__(self):
        # Told of each iterator and its loader: the first that is to record it says how
        self.begun: list[Callable[[object, object], Recording | None]] = []
        self.of_iterator: WeakKeyDictionary[object, Recording] = WeakKeyDictionary()
        self.of_worker: LoaderWork | None = None  # where this process is one

    def begin(self, iterator: object, loader: object) -> None:
        """Note a new iterator of a loader, before anything of it is made."""
        found = [begun(iterator, loader) for begun in list(self.begun)]
        recording = next(filter(None, found), None)
        if recording is not None:
            self.of_iterator[iterator] = recording

    def set_init_fn(self, iterator: object, own: Any) -> object:
        """Return what the workers of an iterator begin with: `own`, and ours before it."""
        recording = self.of_iterator.get(iterator)
        return own if recording is None else WorkerStart(iterator, recording, own)

    def work_of(self, frame: FrameType) -> LoaderWork | None:
        """Return what times the batches that a frame of torch's asks a fetcher for."""
        worker_loop = sys.modules["torch.utils.data._utils.worker"]._worker_loop
        if frame.f_code is worker_loop.__code__:
            return self.of_worker
        iterator = stack.locals_of(frame).get("self")
        recording = None if iterator is None else self.of_iterator.get(iterator)
        return None if recording is None else recording.work


HOOKS = LoaderHooks()


@functools.cache  # once
def install() -> None:
    """Hook torch's iterators and fetchers, which tell `HOOKS` from now on."""
    iterators = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter

    def __new__(cls: Any, loader: object = None, *_more: object, **_named: object) -> object:
        iterator = super(iterators, cls).__new__(cls)
        with OwnErrors():  # ours
            HOOKS.begin(iterator, loader)
        return iterator

    iterators.__new__ = staticmethod(__new__)
    iterators._worker_init_fn = OnSet("_worker_init_fn", HOOKS.set_init_fn)
    fetch = sys.modules["torch.utils.data._utils.fetch"]
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = Before(_begin_fetch, kind.fetch)


def timed(fetcher: Any, work: LoaderWork) -> Any:
    """Time the batches of a new fetcher of torch's, at the start of a pass; return it."""
    kept = held(fetcher)
    streams = "dataset_iter" in kept
    if streams:
        items = map(next, itertools.repeat(kept["dataset_iter"]))
        kept["dataset_iter"] = map(work.end_streamed, items)
    else:
        kept["dataset"] = TimedItems(kept["dataset"], work)
    kept["collate_fn"] = TimedCollate(kept["collate_fn"], work)
    work.begin_pass(streams)
    return fetcher


def _begin_fetch(fetcher: Any) -> Call | None:
    """Begin a batch; return the fetcher's own method, whose end is told."""
    frame = sys._getframe(2)
    collate = held(fetcher)["collate_fn"]
    work = collate.work if type(collate) is TimedCollate else HOOKS.work_of(frame)
    if work is None or not work.is_on:
        return None
    if type(collate) is not TimedCollate:
        timed(fetcher, work)
    names = stack.locals_of(frame)  # torch's own
    indices = names.get("index")
    if not held(fetcher)["auto_collation"]:
        indices = [indices]
    work.begin(names.get("idx"), indices)  # a worker's loop knows which batch of the pass it is
    return Call.of(type(fetcher).fetch, fetcher, over=work.end_fetch)


class TimedItems:
    """Stands for a dataset before torch's fetcher only."""

    def __init__(self, real: Any, work: LoaderWork):
        self.real = real
        self.work = work
        self.item = functools.partial(operator.getitem, real)
        self.attribute = functools.partial(getattr, real)

    def _next_item(self) -> Callable[[object], object]:
        self.work.next_item()
        return self.item

    __getitem__ = Before(_next_item, lambda items, index: items.real[index])
    __getattr__ = Before(operator.attrgetter("attribute"))


class TimedCollate:
    """Stands for a collate function before torch's fetcher only."""

    def __init__(self, real: Any, work: LoaderWork):
        self.real = real
        self.work = work

    def _collate(self) -> Callable[[object], object]:
        self.work.begin_collate()
        return self.real

    __call__ = Before(_collate, lambda collate, samples: collate.real(samples))


@contextlib.contextmanager
def in_workers(loader: object, recording: Recording) -> Iterator[None]:
    """Let the processes that prepare a torch DataLoader's batches record themselves.

    That is what iterators which begin within the block have: their workers, or the main process.
    """
    recorded = torch_loader(loader)

    def begun(_iterator: object, loader: object) -> Recording | None:
        return recording if loader is recorded else None

    if "torch.utils.data.dataloader" in sys.modules:
        install()
    HOOKS.begun.append(begun)
    try:
        yield
    finally:
        HOOKS.begun.remove(begun)


class WorkerStart:
    """What a recorded loader's workers begin with, in the place of its `worker_init_fn`."""

    def __init__(self, iterator: object, recording: Recording, own: Callable[[int], None] | None):
        self.recording = recording._replace(work=None)  # of the main process, whose memory it maps
        self.workers = held(iterator)["_num_workers"]
        self.own = own

    def _begin(self) -> Callable[[int], object]:
        """Begin to record in a worker; return the loader's own function."""
        with contextlib.suppress(Exception):
            self.record()
        return int if self.own is None else self.own  # int does nothing with a worker's number

    __call__ = Before(_begin)

    def record(self) -> None:
        """Begin to record in this worker."""
        folder, _, while_there, start = self.recording
        worker = sys.modules["torch.utils.data._utils.worker"]
        log = None
        if start is not None:
            sampler = Sampler(folder, while_there, self.workers)
            sampler.most //= self.workers * start
            sampler.places.loop = worker._worker_loop.__code__
            sampler.start()
            util.Finalize(None, sampler.flush, exitpriority=10)
            log = sampler.log
        room = MOST_ROWS // self.workers // max(1, (start or 1) // STARTS)
        number = worker.get_worker_info().id
        HOOKS.of_worker = LoaderWork(log, number, while_there, max(1, room))
        install()
        util.Finalize(None, HOOKS.of_worker.flush, exitpriority=10)
