"""The reader's own dataset in the bench: fetched as the spec says, and fed through a DataLoader.

The step is the reader's too. Where none is given the loop only takes the batches: then nothing is
busy, and what is measured is the loader alone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labkit.bench.by_value import ByValue, sendable
from labkit.bench.data import loader_settings
from labkit.bench.item_times import ItemTimes, TimedCollate, TimedDataset
from labkit.bench.user_batches import Endless, EndlessLoader

KNOBS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batch_size")
PARTS = ("dataset", "collate_fn", "step")


def prepare(
    order: dict[str, Any], job: SimpleNamespace, folder: Path
) -> tuple[OwnStep, EndlessLoader]:
    """Return what trains, and the loader that feeds it.

    Raises:
        ImportError, AttributeError: A "module:name" that is not there.
        TypeError: A dataset that a DataLoader cannot use.
    """
    parts = fetch(order, folder)
    dataset = checked(parts["dataset"])
    collate = parts["collate_fn"] or torch.utils.data.default_collate
    streams = isinstance(dataset, IterableDataset)
    if not streams:
        times = ItemTimes(folder, job.num_workers)
        dataset = TimedDataset(NamesTheItem(dataset), times)
        collate = TimedCollate(collate, times)
    return OwnStep(parts["step"]), EndlessLoader(make_loader(dataset, collate, job), job)


def fetch(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return {part: object or None}; the payload is deleted as soon as it has been read."""
    os.chdir(order["cwd"])  # the reader's relative paths
    sys.path += [place for place in order["path"] if place not in sys.path]
    parts = dict.fromkeys(PARTS)
    for name, text in order["imports"].items():
        parts[name] = named(text)
    if isinstance(order["imports"].get("dataset"), str) and not usable(parts["dataset"]):
        parts["dataset"] = parts["dataset"]()
    if order["payload"]:  # objects of the user's own kernel, for this process only
        payload = folder / order["payload"]
        try:
            parts |= pickle.loads(payload.read_bytes())
        finally:
            with contextlib.suppress(OSError):
                payload.unlink()
    return parts


def named(text: str) -> Any:
    """Return what "module:name" names."""
    module, _, names = text.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise AttributeError(f"{text!r}: module {module} has no {names!r}")
        found = getattr(found, name)
    return found


def usable(found: Any) -> bool:
    """Whether `found` is a dataset already, rather than a function or class that makes one."""
    return not isinstance(found, type) and hasattr(found, "__getitem__")


def checked(dataset: Any) -> Any:
    """Return `dataset` if a DataLoader can use it again and again; raise TypeError if not."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return dataset
    if hasattr(dataset, "__next__"):
        raise TypeError(
            f"{kind} is a one-shot iterator: it can be read once, by one process. Give a dataset "
            "with __len__ and __getitem__, or an IterableDataset."
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"{kind} is no dataset: it needs __len__ and __getitem__.")
    if not len(dataset):
        raise ValueError(f"{kind} is empty: there is no item to load.")
    return dataset


def make_loader(dataset: Any, collate: Callable, job: SimpleNamespace) -> DataLoader:
    """Build the reader's DataLoader with the job's settings, in random order, without an end."""
    more = {}
    if job.num_workers and torch.multiprocessing.get_start_method() != "fork":
        dataset, collate = sendable(dataset), ByValue(collate)
    if not isinstance(dataset, IterableDataset):
        more["sampler"] = Endless(len(dataset), job.seed)
    return DataLoader(
        dataset,
        collate_fn=collate,
        **loader_settings(job),
        **more,
    )


class NamesTheItem(Dataset):
    """The reader's dataset; an item that fails is named in the error."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            raise _about(f"dataset[{index}]", error) from error

    def _batch(self, indices: list[int]) -> Any:
        try:
            return self.dataset.__getitems__(indices)
        except Exception as error:
            raise _about(f"dataset.__getitems__({indices})", error) from error


def _about(what: str, error: Exception) -> RuntimeError:
    return RuntimeError(f"{what} failed: {type(error).__name__}: {error}")


class OwnStep:
    """Stands where the bench has its Trainer: the reader's step, or just taking the batch."""

    side_stream = None

    def __init__(self, step: Callable | None):
        self.step, self.model = step, torch.nn.Identity()
        self.no_loss = torch.tensor(float("nan"))

    def to_device(self, batch: Any, counted: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Leave the batch where it is: copying it is the step's business."""
        return batch, counted

    def compute(self, batch: Any, _counted: torch.Tensor, update: bool) -> torch.Tensor:
        """Run the reader's step on one batch."""
        if self.step is not None:
            self.step(batch)
        return self.no_loss

    def after_step(self) -> None:
        """Nothing happens between two steps."""
