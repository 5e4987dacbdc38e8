"""Times what a DataLoader does for its batches, in the processes that prepare them.

torch makes a "fetcher" wherever a loader prepares batches: in each worker, and in the main process
where there are no workers. There the fetcher is given stand-ins for the dataset and the collate
function, which time the calls. The loader, its `dataset` and `get_worker_info().dataset` stay the
user's own objects, and nothing new is sent to a worker that is spawned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from labkit.bench import stack
from labkit.bench.loader_clocks import INDEX
from labkit.bench.loader_work import LoaderWork
from labkit.process.events import now_ns


def watched(fetcher: Any, work: LoaderWork) -> WatchedFetcher:
    """Return what stands for a new fetcher of torch's, at the start of a pass."""
    streams = hasattr(fetcher, "dataset_iter")
    if streams:
        fetcher.dataset_iter = TimedStream(fetcher.dataset_iter, work)
    else:
        at_once = getattr(fetcher.dataset, "__getitems__", None)
        timed = TimedBatches if fetcher.auto_collation and at_once else TimedItems
        fetcher.dataset = timed(fetcher.dataset, work)
    fetcher.collate_fn = TimedCollate(fetcher.collate_fn, work)
    work.begin_pass(streams)
    return WatchedFetcher(fetcher, work)


class WatchedFetcher:
    """Stands for a fetcher of torch's, whose batches are timed."""

    def __init__(self, fetcher: Any, work: LoaderWork):
        self._fetcher = fetcher
        self._work = work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> Any:
        """Return the batch that torch's fetcher makes."""
        work = self._work
        if work.over:
            return self._fetcher.fetch(index)
        number = work.in_pass
        if work.worker >= 0:  # torch's loop of a worker knows which batch of the pass it is
            number = stack.locals_of(sys._getframe(1)).get("idx")
        count = 0 if work.streams else len(index) if isinstance(index, (list, tuple)) else 1
        work.begin(number, count)
        try:
            batch = self._fetcher.fetch(index)
        except BaseException as error:
            work.idle(now_ns())
            without_our_frames(error)
            raise
        work.end()
        return batch


class TimedItems:
    """Stands for a dataset, before torch's fetcher only."""

    def __init__(self, dataset: Any, work: LoaderWork):
        self.dataset = dataset
        self.work = work
        self.words = work.words

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            self.words[INDEX] = index
        else:
            self.work.name_item(index)
        try:
            item = self.dataset[index]
        except BaseException as error:
            without_our_frames(error)
            raise
        self.work.end_item(index)
        return item


class TimedBatches(TimedItems):
    """Stands for a dataset that fetches a batch at once."""

    def __getitems__(self, indices: list[Any]) -> Any:
        """Return what the dataset's own method does."""
        work = self.work
        work.name_item(indices)
        try:
            items = self.dataset.__getitems__(indices)
        except BaseException as error:
            without_our_frames(error)
            raise
        work.end_item(indices)
        return items


class TimedStream:
    """Stands for the iterator of an iterable dataset."""

    def __init__(self, iterator: Iterator[Any], work: LoaderWork):
        self.iterator = iterator
        self.work = work
        self.words = work.words
        self.number = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def __iter__(self) -> TimedStream:
        return self

    def __next__(self) -> Any:
        self.words[INDEX] = self.number
        try:
            item = next(self.iterator)
        except BaseException as error:
            without_our_frames(error)
            raise
        self.work.end_item(self.number)
        self.work.count += 1
        self.number += 1
        return item


class TimedCollate:
    """Stands for a collate function."""

    def __init__(self, collate: Callable[[Any], Any], work: LoaderWork):
        self.collate = collate
        self.work = work

    def __call__(self, samples: Any) -> Any:
        """Return what the function itself does."""
        self.work.begin_collate()
        try:
            return self.collate(samples)
        except BaseException as error:
            without_our_frames(error)
            raise


def without_our_frames(error: BaseException) -> None:
    """Take the frame that calls this, the outermost so far, out of an error's traceback.

    A bare `raise` then goes on as if that frame had not been there (from Python 3.11 on).
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def hook_fetchers(work: LoaderWork, is_wanted: Callable[[Any], bool]) -> Callable[[], None]:
    """Time the batches of each fetcher that torch makes of a wanted dataset.

    Returns what ends that.
    """
    kinds = sys.modules["torch.utils.data"]._DatasetKind
    plain = kinds.create_fetcher

    def create_fetcher(kind: int, dataset: Any, *settings: Any) -> Any:
        fetcher = plain(kind, dataset, *settings)
        if work.over or not is_wanted(dataset):
            return fetcher
        try:
            return watched(fetcher, work)
        except Exception:  # a fetcher of another kind
            return fetcher

    def unhook() -> None:
        if kinds.create_fetcher is create_fetcher:
            kinds.create_fetcher = staticmethod(plain)

    kinds.create_fetcher = staticmethod(create_fetcher)
    return unhook
