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
from labkit.instruments.before_calls import Before, Call, attributes_of
from labkit.instruments.loader_knobs import torch_loader
from labkit.instruments.loader_work import MOST_ROWS, LoaderWork
from labkit.instruments.sampler import Sampler
from labkit.stamps.interrupts import OwnErrors


class Recording(NamedTuple):
    """Where the processes of a loader record what they do for its batches."""

    folder: Path
    work: LoaderWork | None  # of the main process, where there are no workers
    while_there: Path | None = None  # a file: workers that persist record until it is deleted
    start: int = 1  # which of its workers' starts it is: the later, the less is kept of it


# Told of each torch iterator that this process begins, and its loader: the first that is to record
# it says how
BEGUN: list[Callable[[object, object], Recording | None]] = []
recordings: WeakKeyDictionary[object, Recording] = WeakKeyDictionary()  # by iterator
of_worker: list[LoaderWork] = []  # the one of this process, where it is a worker


class InitFn:
    """Stands in the class of torch's iterators for the attribute `_worker_init_fn`.

    torch sets that when it makes an iterator, before it starts the workers, which call it. Where
    the iterator is recorded it becomes a `WorkerStart`, which calls the loader's own in the end.
    """

    def __set__(self, iterator: object, own: Any) -> None:
        kept = attributes_of(iterator)
        kept["_worker_init_fn"] = own
        with OwnErrors():
            if recording := recordings.get(iterator):
                kept["_worker_init_fn"] = WorkerStart(iterator, recording, own)


def _work_of(frame: FrameType) -> LoaderWork | None:
    """Return what times the batches that a frame of torch's asks a fetcher for."""
    worker_loop = sys.modules["torch.utils.data._utils.worker"]._worker_loop
    if frame.f_code is worker_loop.__code__:
        return of_worker[-1] if of_worker else None
    iterator = stack.locals_of(frame).get("self")
    recording = None if iterator is None else recordings.get(iterator)
    return recording and recording.work


@functools.cache  # once
def install() -> None:
    """Hook torch's iterators and fetchers."""
    iterators = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter

    def __new__(cls: Any, loader: object = None, *_more: object, **_named: object) -> object:
        iterator = super(iterators, cls).__new__(cls)
        with OwnErrors():  # ours
            found = [begun(iterator, loader) for begun in BEGUN]
            recordings.update((iterator, each) for each in found[::-1] if each is not None)
        return iterator

    iterators.__new__ = staticmethod(__new__)
    iterators._worker_init_fn = InitFn()
    fetch = sys.modules["torch.utils.data._utils.fetch"]
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = Before(_begin_fetch, kind.fetch)


def time_batches(fetcher: Any, work: LoaderWork) -> Any:
    """Time the batches of a new fetcher of torch's, at the start of a pass; return it."""
    kept = attributes_of(fetcher)
    streams = "dataset_iter" in kept
    if streams:
        items = map(next, itertools.repeat(kept["dataset_iter"]))
        kept["dataset_iter"] = map(work.end_streamed, items)
    else:
        kept["dataset"] = Told(kept["dataset"], work, work.next_item)
    kept["collate_fn"] = Told(kept["collate_fn"], work, work.begin_collate)
    work.begin_pass(streams)
    return fetcher


def _begin_fetch(fetcher: Any) -> Call | None:
    """Begin a batch; return the fetcher's own method, whose end is told."""
    frame = sys._getframe(2)
    collate = attributes_of(fetcher)["collate_fn"]
    is_timed = type(collate) is Told
    work = collate.work if is_timed else _work_of(frame)
    if work is None or not work.is_on:
        return None
    if not is_timed:
        time_batches(fetcher, work)
    names = stack.locals_of(frame)  # torch's own; a worker's loop knows the batch's number
    indices = names.get("index")
    work.begin(names.get("idx"), indices if attributes_of(fetcher)["auto_collation"] else [indices])
    return Call.of(type(fetcher).fetch, fetcher, over=work.end_fetch)


class Told:
    """Stands for a dataset or a collate function before torch's fetcher only. It tells first."""

    def __init__(self, real: Any, work: LoaderWork, tell: Callable[[], None]):
        self.real = real
        self.work = work
        self.tell = tell
        self.item = functools.partial(operator.getitem, real)
        self.attribute = functools.partial(getattr, real)

    def _before(self, called: Callable) -> Callable:
        with OwnErrors():
            self.tell()
        return called

    __getitem__ = Before(lambda own: own._before(own.item))
    __call__ = Before(lambda own: own._before(own.real))
    __getattr__ = Before(operator.attrgetter("attribute"))


@contextlib.contextmanager
def in_workers(loader: object, recording: Recording | None) -> Iterator[None]:
    """Let the processes that prepare a torch DataLoader's batches record themselves.

    That is what iterators which begin within the block have: their workers, or the main process.
    """
    recorded = torch_loader(loader)

    def begun(_iterator: object, loader: object) -> Recording | None:
        return recording if loader is recorded else None

    if "torch.utils.data.dataloader" in sys.modules:
        install()
    BEGUN.append(begun)
    try:
        yield
    finally:
        BEGUN.remove(begun)


class WorkerStart:
    """What a recorded loader's workers begin with, in the place of its `worker_init_fn`."""

    def __init__(self, iterator: object, recording: Recording, own: Callable[[int], None] | None):
        self.recording = recording._replace(work=None)  # of the main process, whose memory it maps
        self.workers = attributes_of(iterator)["_num_workers"]
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
        sampler = Sampler(folder, while_there, self.workers)
        sampler.most //= self.workers * start
        sampler.places.loop = worker._worker_loop.__code__
        sampler.start()
        room = MOST_ROWS // (self.workers * start)
        work = LoaderWork(sampler.log, worker.get_worker_info().id, while_there, room)
        of_worker.append(work)
        install()
        for each in (sampler, work):
            util.Finalize(None, each.flush, exitpriority=10)
