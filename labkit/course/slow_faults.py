"""Faults that cost time, planted for real: each takes an amount, in the unit its docstring states.

The bench imports this by the name in the spec and calls `plant_all`.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from labkit.bench.formats import DTYPES

PLANTS: dict[str, tuple[str, Callable]] = {}  # name -> (where it is planted, the fault)


def planted(where: str) -> Callable[[Callable], Callable]:
    """Register the decorated fault as one that is planted there.

    "item": `fault(dataset, ticket, amount)` is done by the loader for every sample fetched.
    "trainer": `fault(trainer, amount)` changes the copies, the model or the optimizer.
    "stem": `fault(out, amount)` changes what the first convolution or linear layer makes.
    "compute", "after_step": `fault(trainer, amount, step)` is done before the trainer's method of
    that name, or after it; steps count from 1.
    """

    def register(fault: Callable) -> Callable:
        PLANTS[fault.__name__] = where, fault
        return fault

    return register


def plant_all(text: str, dataset: Any, trainer: Any) -> Any:
    """Plant "python_heavy@40+checkpoint@8": each fault with its amount. The bench's hook."""
    for each in text.split("+"):
        name, _, amount = each.partition("@")
        dataset = plant(name, float(amount), dataset, trainer)
    return dataset


def plant(name: str, amount: float, dataset: Any, trainer: Any) -> Any:
    """Plant one fault in the trainer, or return the dataset with it."""
    (where, fault), amount = PLANTS[name], int(amount)
    if where == "item":
        return SlowItems(dataset, fault, amount)
    if where == "trainer":
        fault(trainer, amount)
    elif where == "stem":
        on_stem(trainer, lambda out: fault(out, amount))
    else:
        steps, plain = itertools.count(1), getattr(trainer, where)

        def both(*args: Any, **kwargs: Any) -> Any:
            if where == "compute":
                fault(trainer, amount, next(steps))
            out = plain(*args, **kwargs) if plain else None
            if where == "after_step":
                fault(trainer, amount, next(steps))
            return out

        setattr(trainer, where, both)
    return dataset


class SlowItems(torch.utils.data.Dataset):
    """Wraps a dataset; `work(dataset, ticket, amount)` is done for every sample that is fetched."""

    def __init__(self, dataset: Any, work: Callable, amount: int):
        self.dataset, self.work, self.amount = dataset, work, amount
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: tuple[int, int]) -> Any:
        self.work(self.dataset, ticket, self.amount)
        return self.dataset[ticket]

    def _batch(self, tickets: list[tuple[int, int]]) -> Any:
        for ticket in tickets:
            self.work(self.dataset, ticket, self.amount)
        return self.dataset.__getitems__(tickets)


@planted("item")
def slow_decode(dataset: Any, ticket: tuple[int, int], amount: int) -> None:
    """Every item is read, decoded and augmented `amount` times more than it is used."""
    for _ in range(amount):
        _ = dataset[ticket]


@planted("item")
def object_building(_dataset: Any, _ticket: tuple[int, int], amount: int) -> None:
    """Every item builds `amount` Python dictionaries, as a dataset of parsed records does."""
    records = [{"id": i, "box": (i, i + 1, 2.0), "tag": str(i)} for i in range(amount)]
    _ = sum(record["id"] for record in records)


@planted("item")
def oversubscribed(_dataset: Any, _ticket: tuple[int, int], amount: int) -> None:
    """Every item is blurred `amount` times by torch, on 16 threads in each worker."""
    if torch.get_num_threads() != 16:
        torch.set_num_threads(16)  # the loader had set 1
    for _ in range(amount):
        nn.functional.conv2d(torch.ones(1, 3, 160, 160), torch.ones(8, 3, 5, 5), padding=2)


@planted("trainer")
def small_copies(trainer: Any, amount: int) -> None:
    """The batch goes to the device in `amount` pieces a sample, and is put together there."""
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


@planted("stem")
def launch_storm(out: torch.Tensor, amount: int) -> torch.Tensor:
    """The model runs `amount` pairs of operators on eight numbers."""
    x = torch.zeros(8, device=out.device)
    for _ in range(amount):
        x = x * 0.5 + 1.0
    return out + 0.0 * x[0]


@planted("stem")
def python_heavy(out: torch.Tensor, amount: int) -> torch.Tensor:
    """The model's forward runs `amount` thousand turns of a Python loop."""
    total = 0
    for i in range(1000 * amount):
        total += i & 7
    return out if total >= 0 else -out


@planted("stem")
def elementwise_chain(out: torch.Tensor, amount: int) -> torch.Tensor:
    """A GELU written out of `amount` times five elementwise operators, each a pass over memory."""
    for _ in range(amount):
        out = 0.5 * out * (1.0 + torch.tanh(0.8 * out + 0.04))
    return out


@planted("trainer")
def graph_breaks(trainer: Any, amount: int) -> None:
    """The model is compiled, and its forward falls back to Python `amount` times."""
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


@planted("trainer")
def recompiles(trainer: Any, amount: int) -> None:
    """The model depends on a number that is new in every step: compiled anew, once in `amount`."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    model, steps = trainer.model, itertools.count()
    model.scale = 0

    def before(_module: Any, _inputs: Any) -> None:
        model.scale = next(steps) // amount

    on_stem(trainer, lambda out: out + 0.0 * model.scale)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    compiled.register_forward_pre_hook(before)
    trainer.model = compiled


@planted("trainer")
def one_by_one_optimizer(trainer: Any, amount: int) -> None:
    """The model has `amount` vectors of 16 more, and the optimizer updates them one by one."""
    model, device = trainer.model, trainer.device
    model.extra = nn.ParameterList(torch.zeros(16) for _ in range(amount)).to(device)
    on_stem(trainer, lambda out: out + torch.cat(list(model.extra)).sum())
    # Nothing else is one by one: PyTorch's default on a GPU is to update them all at once
    trainer.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


@planted("compute")
def collect_garbage(_trainer: Any, amount: int, step: int) -> None:
    """A full garbage collection of the process, once in `amount` steps."""
    if step % amount == 0:
        gc.collect()


@planted("after_step")
def log_everything(trainer: Any, amount: int, _step: int) -> None:
    """Statistics of every parameter as JSON to a synced file, `amount` times a step."""
    with open("every_step.log", "a") as file:  # in the run's folder
        for _ in range(amount):
            for name, p in trainer.model.named_parameters():
                values = p.detach().float()
                row = {"name": name, "mean": values.mean().item(), "max": values.max().item()}
                file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


@planted("after_step")
def evaluate(trainer: Any, amount: int, step: int) -> None:
    """Every fifth step, `amount` held-out batches are evaluated and scored in Python."""
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


@planted("after_step")
def checkpoint(trainer: Any, amount: int, step: int) -> None:
    """Every fifth step, the weights and `amount` MB of optimizer state are written and synced."""
    if step % 5 == 0:
        state = torch.zeros(amount * 250_000)
        with open("checkpoint.pt", "wb") as file:  # in the run's folder
            torch.save({"model": trainer.model.state_dict(), "state": state}, file)
            os.fsync(file.fileno())


@planted("after_step")
def read_losses(trainer: Any, amount: int, _step: int) -> None:
    """The host waits for the device `amount` times in every step (`.item()`): costs a GPU only."""
    parameters = itertools.cycle(trainer.model.parameters())
    for p in itertools.islice(parameters, amount):
        p.detach()[:1].sum().item()
