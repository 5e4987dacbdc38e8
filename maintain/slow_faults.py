"""Faults that cost time, planted for real by the bench; `faultset` states each one's amounts.

An "item" fault is done by the loader for every sample fetched, a "stem" fault to what the first
convolution or linear layer makes, a "trainer" fault once; "compute" and "after_step" are done with
the trainer's method of that name, and get the number of the step.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from labkit.bench.formats import DTYPES
from labkit.bench.models import AdamW
from labkit.bench.user_dataset import NamesTheItem


def plant_all(text: str, dataset: Any, trainer: Any) -> Any:
    """Plant "python_heavy@40+checkpoint@8" in the trainer; return the dataset with its faults."""
    for each in text.split("+"):
        name, _, size = each.partition("@")
        (where, fault), amount = PLANTS[name], int(float(size))
        if where == "item":
            dataset = SlowItems(dataset, fault, amount)
        elif where == "trainer":
            fault(trainer, amount)
        elif where == "stem":
            on_stem(trainer, functools.partial(fault, amount=amount))
        else:
            on_step(trainer, where, functools.partial(fault, trainer, amount))
    return dataset


def on_step(trainer: Any, where: str, fault: Callable[[int], None]) -> None:
    """Do the fault before the trainer's method `where`, with the number of the step, from 1."""
    method, steps = getattr(trainer, where), itertools.count(1)

    def both(*args: Any, **kwargs: Any) -> Any:
        fault(next(steps))
        return method(*args, **kwargs) if method else None

    setattr(trainer, where, both)


class SlowItems(NamesTheItem):
    """A dataset of which `work(dataset, ticket, amount)` is done for every sample fetched."""

    def __init__(self, dataset: Any, work: Callable, amount: int):
        super().__init__(dataset)
        self.work, self.amount = work, amount

    def __getitem__(self, ticket: tuple[int, int]) -> Any:
        self.work(self.dataset, ticket, self.amount)
        return self.dataset[ticket]

    def _batch(self, tickets: list[tuple[int, int]]) -> Any:
        for ticket in tickets:
            self.work(self.dataset, ticket, self.amount)
        return self.dataset.__getitems__(tickets)


def slow_decode(dataset: Any, ticket: tuple[int, int], amount: int) -> None:
    for _ in range(amount):
        _ = dataset[ticket]


def object_building(_dataset: Any, _ticket: tuple[int, int], amount: int) -> None:
    records = [{"id": i, "box": (i, i + 1, 2.0), "tag": str(i)} for i in range(amount)]
    _ = sum(record["id"] for record in records)


def oversubscribed(_dataset: Any, _ticket: tuple[int, int], amount: int) -> None:
    if torch.get_num_threads() != 16:
        torch.set_num_threads(16)  # the loader had set 1
    for _ in range(amount):
        nn.functional.conv2d(torch.ones(1, 3, 160, 160), torch.ones(8, 3, 5, 5), padding=2)


def small_copies(trainer: Any, amount: int) -> None:
    device, plain = trainer.device, trainer.to_device

    def to_device(images: torch.Tensor, labels: torch.Tensor) -> tuple:
        pieces = images.flatten(2).chunk(amount, dim=2)
        parts = [part.to(device, copy=True) for piece in pieces for part in piece]  # many copies
        starts = range(0, len(parts), len(images))
        pieces = [torch.stack(parts[i : i + len(images)]) for i in starts]
        return torch.cat(pieces, dim=2).view(images.shape), plain(images[:0], labels)[1]

    trainer.to_device = to_device


def on_stem(trainer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Pass what the first convolution or linear layer makes through `change`."""
    stem = next(m for m in trainer.model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    stem.register_forward_hook(lambda _module, _inputs, out: change(out))


def launch_storm(out: torch.Tensor, amount: int) -> torch.Tensor:
    x = torch.zeros(8, device=out.device)
    for _ in range(amount):
        x = x * 0.5 + 1.0
    return out + 0.0 * x[0]


def python_heavy(out: torch.Tensor, amount: int) -> torch.Tensor:
    total = 0
    for i in range(1000 * amount):
        total += i & 7
    return out if total >= 0 else -out


def elementwise_chain(out: torch.Tensor, amount: int) -> torch.Tensor:
    for _ in range(amount):
        out = 0.5 * out * (1.0 + torch.tanh(0.8 * out + 0.04))
    return out


def graph_breaks(trainer: Any, amount: int) -> None:
    start = torch.zeros(8, device=trainer.device)

    def broken(x: torch.Tensor) -> torch.Tensor:  # of its own: a break in a loop ends compilation
        x = x * 0.5
        torch._dynamo.graph_break()
        return x + 1.0

    def breaks(out: torch.Tensor) -> torch.Tensor:
        x = start
        for _ in range(amount):
            x = broken(x)
        return out + 0.0 * x[0]

    on_stem(trainer, breaks)
    trainer.model = torch.compile(trainer.model, backend="eager")


def recompiles(trainer: Any, amount: int) -> None:
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    model, steps = trainer.model, itertools.count()
    model.scale = 0

    def before(_module: Any, _inputs: Any) -> None:
        model.scale = next(steps) // amount

    on_stem(trainer, lambda out: out + 0.0 * model.scale)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    compiled.register_forward_pre_hook(before)
    trainer.model = compiled


def one_by_one_optimizer(trainer: Any, amount: int) -> None:
    model, device = trainer.model, trainer.device
    model.extra = nn.ParameterList(torch.zeros(16) for _ in range(amount)).to(device)
    on_stem(trainer, lambda out: out + torch.cat(list(model.extra)).sum())
    # Nothing else is one by one: PyTorch's default on a GPU is to update them all at once
    trainer.optimizer = AdamW(model.parameters(), lr=1e-3, foreach=False)


def collect_garbage(_trainer: Any, amount: int, step: int) -> None:
    if step % amount == 0:
        gc.collect()


def log_everything(trainer: Any, amount: int, _step: int) -> None:
    with open("every_step.log", "a") as file:  # in the run's folder
        for _ in range(amount):
            for name, p in trainer.model.named_parameters():
                values = p.detach().float()
                row = {"name": name, "mean": values.mean().item(), "max": values.max().item()}
                file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def evaluate(trainer: Any, amount: int, step: int) -> None:
    if step % 5:
        return
    job, dtype = trainer.job, DTYPES.get(trainer.job.precision)
    images = torch.zeros(job.batch_size, 3, job.image_px, job.image_px, dtype=torch.uint8)
    trainer.model.eval()
    cast = torch.amp.autocast(trainer.device.type, dtype=dtype, enabled=dtype is not None)
    with torch.no_grad(), cast:  # in FP32 it would take an H200 ten times as long
        for _ in range(amount):
            guess = trainer.model(trainer.to_device(images, images[:, 0, 0, 0])[0].float())
            _ = [int(row.argmax()) for row in guess]  # waits for the device, row by row
    trainer.model.train()


def checkpoint(trainer: Any, amount: int, step: int) -> None:
    if step % 5 == 0:
        state = torch.zeros(amount * 250_000)
        with open("checkpoint.pt", "wb") as file:  # in the run's folder
            torch.save({"model": trainer.model.state_dict(), "state": state}, file)
            os.fsync(file.fileno())


def read_losses(trainer: Any, amount: int, _step: int) -> None:
    parameters = itertools.cycle(trainer.model.parameters())
    for p in itertools.islice(parameters, amount):
        p.detach()[:1].sum().item()


PLANTS = {
    fault.__name__: (where, fault)
    for where, faults in {
        "item": (slow_decode, object_building, oversubscribed),
        "trainer": (small_copies, graph_breaks, recompiles, one_by_one_optimizer),
        "stem": (launch_storm, python_heavy, elementwise_chain),
        "compute": (collect_garbage,),
        "after_step": (log_everything, evaluate, checkpoint, read_losses),
    }.items()
    for fault in faults
}
