"""Times what a DataLoader does for its batches, in the processes that prepare them.

torch makes a "fetcher" wherever a loader prepares batches: in each worker, and in the main process
where there are no workers. There the fetcher is given stand-ins for the dataset and the collate
function, which time the calls. The loader, its `dataset` and `get_worker_info().dataset` stay the
user's own objects, and nothing new is sent to a worker that is spawned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from labkit.bench import stack
from labkit.bench.loader_work import LoaderWork
from labkit.process.events import now_ns


def timed(fetcher: Any, work: LoaderWork) -> TimedFetcher:
    """Return what stands for a new fetcher of torch's, at the start of a pass."""
    streams = hasattr(fetcher, "dataset_iter")
    if streams:
        fetcher.dataset_iter = TimedStream(fetcher.dataset_iter, work)
    else:
        at_once = fetcher.auto_collation and getattr(fetcher.dataset, "__getitems__", None)
        kind = TimedBatches if at_once else TimedItems
        fetcher.dataset = kind(fetcher.dataset, work)
    fetcher.collate_fn = TimedCollate(fetcher.collate_fn, work)
    work.begin_pass(streams)
    return TimedFetcher(fetcher, work)


class StandIn:
    """Has the attributes of what it stands for."""

    def __init__(self, real: Any, work: LoaderWork):
        self.real = real
        self.work = work
        # a call less for each item, whose cost is that of cold caches
        self.begin_item = work.progress.name_item
        self.end_item = work.end_item

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


class TimedFetcher(StandIn):
    """Stands for a fetcher of torch's, whose batches are timed."""

    def fetch(self, index: object) -> object:
        """Return the batch that torch's fetcher makes."""
        work = self.work
        if work.over:
            return self.real.fetch(index)
        number: int | None = work.in_pass
        if work.worker >= 0:  # torch's loop of a worker knows which batch of the pass it is
            known = stack.locals_of(sys._getframe(1)).get("idx")
            number = known if isinstance(known, int) else None
        count = len(index) if isinstance(index, (list, tuple)) else 1
        work.begin(number, 0 if work.streams else count)
        try:
            batch = self.real.fetch(index)
        except BaseException as error:
            work.idle(now_ns())
            error.__traceback__ = without_ours(error.__traceback__)
            raise
        work.end()
        return batch


class TimedItems(StandIn):
    """Stands for a dataset, before torch's fetcher only."""

    def __getitem__(self, index: object) -> object:
        self.begin_item(index)
        item = self.real[index]
        self.end_item(index)
        return item


class TimedBatches(TimedItems):
    """Stands for a dataset that fetches a batch at once."""

    def __getitems__(self, indices: list[object]) -> object:
        """Return what the dataset's own method does."""
        self.begin_item(indices)
        items = self.real.__getitems__(indices)
        self.end_item(indices)
        return items


class TimedStream(StandIn):
    """Stands for the iterator of an iterable dataset."""

    number = 0

    def __iter__(self) -> TimedStream:
        return self

    def __next__(self) -> object:
        self.begin_item(self.number)
        item = next(self.real)
        self.end_item(self.number)
        self.work.count += 1
        self.number += 1
        return item


class TimedCollate(StandIn):
    """Stands for a collate function."""

    def __call__(self, samples: object) -> object:
        """Return what the function itself does."""
        self.work.begin_collate()
        return self.real(samples)


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of labkit: an error reads as without us."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(stack.HOME):
        traceback = traceback.tb_next
    if traceback is not None:
        traceback.tb_next = without_ours(traceback.tb_next)
    return traceback


def hook_fetchers(work: LoaderWork, is_wanted: Callable[[object], bool]) -> Callable[[], None]:
    """Time the batches of each fetcher that torch makes of a wanted dataset.

    Returns what ends that.
    """
    kinds = sys.modules["torch.utils.data"]._DatasetKind
    plain = kinds.create_fetcher

    def create_fetcher(kind: int, dataset: object, *settings: object) -> object:
        fetcher = plain(kind, dataset, *settings)
        if work.over or not is_wanted(dataset):
            return fetcher
        try:
            return timed(fetcher, work)
        except Exception:  # a fetcher of another kind
            return fetcher

    def unhook() -> None:
        if kinds.create_fetcher is create_fetcher:
            kinds.create_fetcher = staticmethod(plain)

    kinds.create_fetcher = staticmethod(create_fetcher)
    return unhook
