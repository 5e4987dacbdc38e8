"""The reader's own dataset in the bench: fetched as the order says, and fed through a DataLoader.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labkit.bench import batch_contents, data
from labkit.bench.by_value import send_by_value
from labkit.bench.formats import DTYPES
from labkit.bench.models import set_layout
from labkit.knobs import Settings
from labkit.orders import DataSource
from labkit.spec import LOADER_KNOBS, STEP_KNOBS, Job

Batch: TypeAlias = Any  # whatever the reader's collate function makes
USER_PARTS = ("dataset", "collate_fn", "step", "model", "optimizer")
ONE = torch.empty(1)  # expanded, it counts samples and holds none
NO_LOSS = torch.tensor(float("nan"))


def prepare(source: DataSource, job: Job, folder: Path) -> tuple[OwnStep, Batches]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    parts = _fetch(source, folder)
    dataset = _checked(parts["dataset"])
    collate = parts["collate_fn"] or torch.utils.data.default_collate
    streams = isinstance(dataset, IterableDataset)
    items = dataset if streams else (dataset[i % len(dataset)] for i in itertools.count())
    trainer = OwnStep(parts["step"], parts["model"], parts["optimizer"], job)
    trainer.set_up(lambda: collate(list(itertools.islice(items, job.batch_size))))
    sampler = None
    if not streams:
        sampler = data.EndlessShuffle(len(dataset), job.seed)
        dataset = NamesTheItem(dataset)
    send_by_value()
    settings = data.loader_settings(job)
    loader = DataLoader(dataset, collate_fn=collate, sampler=sampler, **settings)
    return trainer, Batches(loader, job)


def _fetch(source: DataSource, folder: Path) -> Settings:
    """Return {part: object or None}; the payload is deleted as soon as it has been read."""
    os.chdir(source["cwd"])  # the reader's relative paths
    sys.path += [place for place in source["path"] if place not in sys.path]
    parts: Settings = dict.fromkeys(USER_PARTS)
    for name, text in source["imports"].items():  # "module:name"
        parts[name] = pkgutil.resolve_name(text)
    made = parts["dataset"]  # a dataset already, or the function or class that makes one
    is_made = not isinstance(made, type) and hasattr(made, "__getitem__")
    if made is not None and not is_made:
        parts["dataset"] = made()
    if source["payload"]:  # objects of the user's own kernel, for this process only
        payload = folder / source["payload"]
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
    """The reader's dataset; errors name the item."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> object:
        return self._fetch("__getitem__", index)

    def _batch(self, indices: list[int]) -> object:
        return self._fetch("__getitems__", indices)

    def _fetch(self, how: str, which: object) -> object:
        try:
            return getattr(self.dataset, how)(which)
        except Exception as error:
            call = f"dataset[{which}]" if how == "__getitem__" else f"dataset.{how}({which})"
            raise RuntimeError(f"{call} failed: {type(error).__name__}: {error}") from error


def knobs_of(job: Job, source: DataSource) -> dict[str, object]:
    """Return the knobs that act on the reader's parts."""
    of_step = STEP_KNOBS if "model" in source["parts"] else ()
    return {name: getattr(job, name) for name in (*LOADER_KNOBS, *of_step)}


class OwnStep:
    """The reader's step, or nothing, in the place of the bench's own Trainer."""

    side_stream = None

    def __init__(
        self,
        step: Callable[..., object] | None,
        model: nn.Module | Callable[[], nn.Module] | None,
        optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer] | None,
        job: Job,
    ):
        """`model` and `optimizer` may also be functions that make them."""
        self.job = job
        self.device = torch.device(job.device)
        job.xray = job.xray and step is not None
        if model is not None and not isinstance(model, nn.Module):
            model = model().to(self.device)
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            if model is None:
                raise ValueError("optimizer updates a model's parameters: give model too.")
            optimizer = optimizer(model.parameters())
        self.step = step
        self.given = (model, optimizer) if step is not None and _takes(step) > 1 else ()
        self.given_model: nn.Module | None = model
        self.model = nn.Identity() if model is None else model
        self.optimizer: Optimizer | None = optimizer

    def set_up(self, one_batch: Callable[[], Batch]) -> None:
        """Do what the job's knobs say to the model and its optimizer, and try a step."""
        if self.given_model is not None:
            if self.job.channels_last:
                set_layout(self.given_model, torch.channels_last)
            if self.optimizer is not None and self.job.fused_optimizer:
                _fuse(self.optimizer)
            self._check_and_compile(one_batch())
        torch.manual_seed(self.job.seed)

    def to_device(self, images: Batch, labels: torch.Tensor, /) -> tuple[Batch, torch.Tensor]:
        """Return the batch as it is: copying it is the step's business."""
        return images, labels

    def compute(self, images: Batch, _counted: torch.Tensor, /, update: bool) -> torch.Tensor:
        """Do the reader's step on a batch; return its loss, NaN where it returns none."""
        if self.step is None:
            return NO_LOSS
        dtype = DTYPES.get(self.job.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            loss = self.step(*self.given, images)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return loss.detach().float().reshape(())  # as (1,) it would not fit the recorder's slot
        return torch.tensor(float(loss)) if isinstance(loss, (int, float)) else NO_LOSS

    def after_step(self) -> None:
        """Go on."""

    def _check_and_compile(self, batch: Batch) -> None:
        """Do a step to see that the model is in it, compiled where the job says so; undo it."""
        optimizer = self.optimizer
        kept = copy.deepcopy((self.model.state_dict(), optimizer and optimizer.state_dict()))
        called: list[bool] = []
        hook = self.model.register_forward_pre_hook(lambda *_: called.append(True))
        self.compute(batch, ONE, update=True)
        hook.remove()
        if not called:
            raise ValueError(
                "step did not call the model that was given: write it as "
                "step(model, optimizer, batch)."
            )
        if self.job.compile:
            self.model.compile(mode=self.job.compile)
            for _ in range(3):  # CUDA graphs are recorded in the second call, replayed in the third
                self.compute(batch, ONE, update=True)
        model_state, optimizer_state = kept
        self.model.load_state_dict(model_state)
        if optimizer is not None and optimizer_state is not None:
            optimizer.state.clear()
            optimizer.load_state_dict(optimizer_state)
            optimizer.zero_grad(set_to_none=True)


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer update all weights in one pass; raise ValueError where it has none."""
    for group in optimizer.param_groups:
        if "fused" not in group:
            raise ValueError(f"{type(optimizer).__name__} has no fused version.")
        group.update(fused=True, foreach=False)
    for weights, state in optimizer.state.items():
        if isinstance(step := state.get("step"), torch.Tensor):  # kept in RAM until it is fused
            state["step"] = step.to(weights.device)


def _takes(step: Callable[..., object]) -> int:
    """Return how many arguments a step needs: (batch) or (model, optimizer, batch)."""
    parameters = inspect.signature(step).parameters.values()
    needed = sum(each.default is each.empty for each in parameters)
    if needed not in (1, 3):
        raise ValueError("step takes (batch), or (model, optimizer, batch).")
    return needed


class Batches:
    """The loader's batches without end, each with how many samples it holds."""

    def __init__(self, loader: DataLoader[object], job: Job):
        self.loader = loader
        self.job = job
        self.streams = isinstance(loader.dataset, IterableDataset)
        self.taken = 0
        self.tensors: tuple[torch.Tensor, ...] = ()  # of the first batch
        self.first_values: list[list[object]] = []  # of a stream's first batches
        self.count: Callable[[Batch], int] = lambda _: job.batch_size

    def __iter__(self) -> Batches:
        self.iterator = iter(self.loader)  # starts the workers
        return self

    def __next__(self) -> tuple[Batch, torch.Tensor]:
        try:
            batch = next(self.iterator)
        except StopIteration:
            batch = self._again()
        if self.streams and self.taken <= self.job.num_workers:
            self._compare(batch)
        if not self.taken:
            leaves = batch_contents.leaves(batch)
            self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            if self.streams:  # their last batch may be short
                self.count = batch_contents.counter_for(batch, self.job.batch_size) or self.count
        self.taken += 1
        # in place of the labels, which only the reader knows
        return batch, ONE.expand(self.count(batch))

    def _again(self) -> Batch:
        """Begin the next pass over a stream that has ended."""
        if self.taken:
            self.iterator = iter(self.loader)
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
        raise RuntimeError(
            f"the dataset gave {self.taken} batches and then none: is it a one-shot iterator? "
            "Its __iter__ has to begin anew each time."
        )

    def _compare(self, batch: Batch) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        workers = self.job.num_workers
        if workers < 2:
            return
        values: list[object] = []
        for leaf in batch_contents.leaves(batch):
            values.append(_bytes_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf))
        self.first_values.append(values)
        if len(self.first_values) == workers + 1:
            first, second, *_, again = self.first_values
            if first == second and again != first:
                raise RuntimeError(
                    f"each of {workers} workers streams the same samples: with an IterableDataset "
                    "use torch.utils.data.get_worker_info() to give each worker its own share, "
                    "or stay at num_workers=1."
                )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's numbers, in any format, on any device."""
    flat = tensor.detach().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()  # NumPy knows no bfloat16
