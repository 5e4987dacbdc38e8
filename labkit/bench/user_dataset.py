"""The reader's own dataset in the bench: fetched as the spec says, and fed through a DataLoader.

The step is the reader's too. Where none is given the loop only takes the batches: then nothing is
busy, and what is measured is the loader alone. Batches do not end: the run says when to stop.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import os
import pickle
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labkit.bench import data, user_loop
from labkit.bench.by_value import send_by_value
from labkit.bench.formats import DTYPES
from labkit.bench.job import Job
from labkit.bench.models import set_layout
from labkit.spec import STEP_KNOBS

PARTS = ("dataset", "collate_fn", "step", "model", "optimizer")
ONE = torch.empty(1)  # expanded, it counts samples and holds none
NO_LOSS = torch.tensor(float("nan"))


def prepare(order: dict[str, Any], job: Job, folder: Path) -> tuple[Any, Batches]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    parts = _fetch(order, folder)
    dataset = _checked(parts["dataset"])
    collate = parts["collate_fn"] or torch.utils.data.default_collate
    streams = isinstance(dataset, IterableDataset)
    more: dict[str, Any] = {}
    items = dataset if streams else (dataset[i % len(dataset)] for i in itertools.count())

    def one_batch() -> Any:
        return collate(list(itertools.islice(items, job.batch_size)))

    trainer = own_step(parts, job, one_batch)
    if not streams:
        more["sampler"] = data.EndlessShuffle(len(dataset), job.seed)
        dataset = NamesTheItem(dataset)
    send_by_value()
    loader = DataLoader(dataset, collate_fn=collate, **data.loader_settings(job), **more)
    return trainer, Batches(loader, job, parts["collate_fn"])


def _fetch(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return {part: object or None}; the payload is deleted as soon as it has been read."""
    os.chdir(order["cwd"])  # the reader's relative paths
    sys.path += [place for place in order["path"] if place not in sys.path]
    parts: dict[str, Any] = dict.fromkeys(PARTS)
    for name, text in order["imports"].items():  # "module:name"
        parts[name] = pkgutil.resolve_name(text)
    made = parts["dataset"]  # a dataset already, or the function or class that makes one
    is_made = not isinstance(made, type) and hasattr(made, "__getitem__")
    if made is not None and not is_made:
        parts["dataset"] = made()
    if order["payload"]:  # objects of the user's own kernel, for this process only
        payload = folder / order["payload"]
        try:
            parts |= pickle.loads(payload.read_bytes())
        finally:
            payload.unlink(missing_ok=True)
    return parts


def _checked(dataset: Any) -> Any:
    """Return `dataset` if a DataLoader can use it again and again; raise TypeError if not."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        once = " can be read once only, and" if hasattr(dataset, "__next__") else ""
        need = "it needs __len__ and __getitem__, or to be an IterableDataset."
        raise TypeError(f"{kind}{once} is not a dataset: {need}")
    if not len(dataset):
        raise ValueError(f"{kind} is empty: there is no item to load.")
    return dataset


class NamesTheItem(Dataset):
    """The reader's dataset, fetched by a ticket: (draw number, index); errors name the item."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: tuple[int, int]) -> Any:
        return self._fetch("__getitem__", ticket[1])

    def _batch(self, tickets: list[tuple[int, int]]) -> Any:
        return self._fetch("__getitems__", [index for _, index in tickets])

    def _fetch(self, how: str, which: Any) -> Any:
        try:
            return getattr(self.dataset, how)(which)
        except Exception as error:
            call = f"dataset[{which}]" if how == "__getitem__" else f"dataset.{how}({which})"
            raise RuntimeError(f"{call} failed: {type(error).__name__}: {error}") from error


def knobs_of(job: Job, order: dict[str, Any]) -> dict[str, Any]:
    """Return the knobs that act on the reader's parts."""
    of_step = STEP_KNOBS if "model" in order["parts"] else ()
    return {name: getattr(job, name) for name in (*user_loop.READ, *of_step)}


def own_step(parts: dict[str, Any], job: Job, batch: Callable[[], Any]) -> SimpleNamespace:
    """Return what stands where the bench has its Trainer: the reader's step, or nothing."""
    device = torch.device(job.device)
    step = parts["step"]
    model = parts["model"]
    optimizer = parts["optimizer"]
    job.xray = job.xray and step is not None
    if model is not None and not isinstance(model, nn.Module):
        model = model().to(device)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if model is None:
            raise ValueError("optimizer updates a model's parameters: give model too.")
        optimizer = optimizer(model.parameters())
    given = (model, optimizer) if step is not None and _takes(step) > 1 else ()

    def compute(batch: Any, _counted: torch.Tensor, update: bool) -> torch.Tensor:
        if step is None:
            return NO_LOSS
        dtype = DTYPES.get(job.precision)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = step(*given, batch)
        if torch.is_tensor(loss) and loss.numel() == 1:
            return loss.detach().float().reshape(())  # as (1,) it would not fit the recorder's slot
        return torch.tensor(float(loss)) if isinstance(loss, (int, float)) else NO_LOSS

    if model is not None:
        if job.channels_last:
            set_layout(model, torch.channels_last)
        for group in optimizer.param_groups if optimizer and job.fused_optimizer else ():
            if "fused" not in group:
                raise ValueError(f"{type(optimizer).__name__} has no fused version.")
            group.update(fused=True, foreach=False)
        _check_and_compile(compute, model, optimizer, job, batch)
    torch.manual_seed(job.seed)
    return SimpleNamespace(
        compute=compute, side_stream=None, model=model or nn.Identity(), after_step=lambda: None,
        to_device=lambda *batch: batch,  # copying it is the step's business
        device=device, job=job, optimizer=optimizer or SimpleNamespace(zero_grad=lambda **_: None),
    )  # fmt: skip


def _takes(step: Callable) -> int:
    """Return how many arguments a step needs: (batch) or (model, optimizer, batch)."""
    needed = [p for p in inspect.signature(step).parameters.values() if p.default is p.empty]
    if len(needed) not in (1, 3):
        raise ValueError("step takes (batch), or (model, optimizer, batch).")
    return len(needed)


def _check_and_compile(
    compute: Callable, model: nn.Module, optimizer: Any, job: Job, batch: Callable
) -> None:
    """Do a step to see that the model is in it, compiled where the job says so; undo it."""
    kept = copy.deepcopy((model.state_dict(), optimizer and optimizer.state_dict()))
    called: list[bool] = []
    hook = model.register_forward_pre_hook(lambda *_: called.append(True))
    compute(one := batch(), ONE, True)
    hook.remove()
    if not called:
        raise ValueError(
            "step did not call the model that was given: write it as step(model, optimizer, batch)."
        )
    if job.compile:
        model.compile(mode=job.compile)
        for _ in range(3):  # CUDA graphs are recorded in the second call and replayed in the third
            compute(one, ONE, True)
    model.load_state_dict(kept[0])
    if optimizer is not None:
        optimizer.state.clear()
        optimizer.load_state_dict(kept[1])
        optimizer.zero_grad(set_to_none=True)


class Batches:
    """The loader's batches without end, each with how many samples it holds."""

    def __init__(self, loader: DataLoader, job: Job, collate: Any):
        self.loader, self.job, self.collate = loader, job, collate
        self.streams = isinstance(loader.dataset, IterableDataset)
        self.taken, self.marks, self.tensors = 0, [], ()
        self.count: Callable[[Any], int] = lambda _: job.batch_size

    def __iter__(self) -> Batches:
        self.iterator = iter(self.loader)  # starts the workers
        return self

    def __next__(self) -> tuple[Any, torch.Tensor]:
        try:
            batch = next(self.iterator)
        except StopIteration:
            batch = self._again()
        if self.streams and self.taken <= self.job.num_workers:
            self._compare(batch)
        if not self.taken:
            self.tensors = tuple(filter(torch.is_tensor, _leaves(batch)))
            if self.streams:  # their last batch may be short
                self.count = user_loop.counter_for(batch, self.job.batch_size) or self.count
        self.taken += 1
        # in place of the labels, which only the reader knows
        return batch, ONE.expand(self.count(batch))

    def _again(self) -> Any:
        """Begin the next pass over a stream that has ended."""
        if self.taken:
            self.iterator = iter(self.loader)
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
        raise RuntimeError(
            f"the dataset gave {self.taken} batches and then none: is it a one-shot iterator? "
            "Its __iter__ has to begin anew each time."
        )

    def _compare(self, batch: Any) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        values = [x.numpy().tobytes() if torch.is_tensor(x) else repr(x) for x in _leaves(batch)]
        self.marks.append(values)
        workers = self.job.num_workers
        if workers > 1 and len(self.marks) == workers + 1:
            first, second, *_, again = self.marks
            if first == second and again != first:
                raise RuntimeError(
                    f"each of {workers} workers streams the same samples: with an IterableDataset "
                    "use torch.utils.data.get_worker_info() to give each worker its own share, "
                    "or stay at num_workers=1."
                )


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with `change` made to what is in it, however deep in tuples and mappings."""
    if isinstance(batch, Mapping):
        return {name: mapped(part, change) for name, part in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return change(batch)
    parts = [mapped(part, change) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _leaves(batch: Any) -> list[Any]:
    mapped(batch, (found := []).append)
    return found
