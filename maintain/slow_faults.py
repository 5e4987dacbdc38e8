"""Faults that cost time, planted for real by the bench; `faultset` states each one's amounts.

An "item" fault is done by the loader for every sample fetched, a "stem" fault to what the first
convolution or linear layer makes, a "trainer" fault once; "compute" and "after_step" are done with
the trainer's method of that name, and get the number of the step.
"""

from __future__ import annotations

import gc
import itertools
import os
from functools import partial

import torch
from torch import nn

from labkit.bench.formats import DTYPES
from labkit.bench.models import AdamW
from labkit.bench.user_dataset import NamesTheItem


def plant_all(text, dataset, trainer):
    """Plant "python_heavy@40+checkpoint@8" in the trainer; return the dataset with its faults."""
    for each in text.split("+"):
        name, _, size = each.partition("@")
        amount = int(float(size))
        where, fault = PLANTS[name]
        if where == "item":
            dataset = SlowItems(dataset, partial(fault, amount))
        elif where == "trainer":
            fault(amount, trainer)
        elif where == "stem":
            on_stem(trainer, partial(fault, amount))
        else:
            on_step(trainer, where, partial(fault, amount, trainer))
    return dataset


def on_step(trainer, where, fault):
    """Do the fault before the trainer's method `where`, with the number of the step, from 1."""
    method = getattr(trainer, where)
    steps = itertools.count(1)

    def both(*args, **kwargs):
        fault(next(steps))
        return method(*args, **kwargs) if method else None

    setattr(trainer, where, both)


def on_stem(trainer, change):
    """Pass what the first convolution or linear layer makes through `change`."""
    layers = trainer.model.modules()
    stem = next(layer for layer in layers if isinstance(layer, (nn.Conv2d, nn.Linear)))
    stem.register_forward_hook(lambda _module, _inputs, out: change(out))


class SlowItems(NamesTheItem):
    """A dataset of which `work(dataset, index)` is done for every sample fetched."""

    def __init__(self, dataset, work):
        super().__init__(dataset)
        self.work = work

    def __getitem__(self, index):
        self.work(self.dataset, index)
        return self.dataset[index]

    def _batch(self, indices):
        for index in indices:
            self.work(self.dataset, index)
        return self.dataset.__getitems__(indices)


# Of an item: (amount, dataset, index)


def slow_decode(amount, dataset, index):
    for _ in range(amount):
        _ = dataset[index]


def object_building(amount, _dataset, _index):
    records = [{"id": i, "box": (i, i + 1, 2.0), "tag": str(i)} for i in range(amount)]
    _ = sum(record["id"] for record in records)


def oversubscribed(amount, _dataset, _index):
    if torch.get_num_threads() != 16:
        torch.set_num_threads(16)  # the loader had set 1
    for _ in range(amount):
        nn.functional.conv2d(torch.ones(1, 3, 160, 160), torch.ones(8, 3, 5, 5), padding=2)


# Of the stem: (amount, what it makes)


def launch_storm(amount, out):
    x = torch.zeros(8, device=out.device)
    for _ in range(amount):
        x = x * 0.5 + 1.0
    return out + 0.0 * x[0]


def python_heavy(amount, out):
    total = 0
    for i in range(1000 * amount):
        total += i & 7
    return out if total >= 0 else -out


def elementwise_chain(amount, out):
    for _ in range(amount):
        out = 0.5 * out * (1.0 + torch.tanh(0.8 * out + 0.04))
    return out


# Of the trainer, once: (amount, trainer)


def small_copies(amount, trainer):
    plain = trainer.to_device

    def to_device(images, labels):
        pieces = images.flatten(2).chunk(amount, dim=2)
        copied = []
        for piece in pieces:
            parts = [part.to(trainer.device, copy=True) for part in piece]  # many copies
            copied.append(torch.stack(parts))
        _, labels = plain(images[:0], labels)
        return torch.cat(copied, dim=2).view(images.shape), labels

    trainer.to_device = to_device


def recompiles(amount, trainer):
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    model = trainer.model
    model.scale = 0
    steps = itertools.count()

    def before(_module, _inputs):
        model.scale = next(steps) // amount

    on_stem(trainer, lambda out: out + 0.0 * model.scale)
    trainer.model = torch.compile(model, backend="eager", dynamic=False)
    trainer.model.register_forward_pre_hook(before)


def one_by_one_optimizer(amount, trainer):
    model = trainer.model
    model.extra = nn.ParameterList(torch.zeros(16) for _ in range(amount)).to(trainer.device)
    on_stem(trainer, lambda out: out + torch.cat(list(model.extra)).sum())
    # Nothing else is one by one: PyTorch's default on a GPU is to update them all at once
    trainer.optimizer = AdamW(model.parameters(), lr=1e-3, foreach=False)


# Of a step: (amount, trainer, number of the step); files lie in the run's folder


def collect_garbage(amount, _trainer, step):
    if step % amount == 0:
        gc.collect()


def log_everything(amount, trainer, _step):
    with open("every_step.log", "a") as file:
        for _ in range(amount):
            for name, parameter in trainer.model.named_parameters():
                values = parameter.detach().float()
                file.write(f"{name}: mean {values.mean().item()}, max {values.max().item()}\n")
            file.flush()
            os.fsync(file.fileno())


def evaluate(amount, trainer, step):
    if step % 5:
        return
    job = trainer.job
    dtype = DTYPES.get(job.precision)
    images = torch.zeros(job.batch_size, 3, job.image_px, job.image_px, dtype=torch.uint8)
    trainer.model.eval()
    cast = torch.amp.autocast(trainer.device.type, dtype=dtype, enabled=dtype is not None)
    with torch.no_grad(), cast:  # in FP32 it would take an H200 ten times as long
        for _ in range(amount):
            guess = trainer.model(trainer.to_device(images, images[:, 0, 0, 0])[0].float())
            _ = [int(row.argmax()) for row in guess]  # waits for the device, row by row
    trainer.model.train()


def checkpoint(amount, trainer, step):
    if step % 5 == 0:
        state = torch.zeros(amount * 250_000)
        with open("checkpoint.pt", "wb") as file:
            torch.save({"model": trainer.model.state_dict(), "state": state}, file)
            os.fsync(file.fileno())


def read_losses(amount, trainer, _step):
    parameters = itertools.cycle(trainer.model.parameters())
    for parameter in itertools.islice(parameters, amount):
        parameter.detach()[:1].sum().item()


FAULTS_OF = {
    "item": (slow_decode, object_building, oversubscribed),
    "stem": (launch_storm, python_heavy, elementwise_chain),
    "trainer": (small_copies, recompiles, one_by_one_optimizer),
    "compute": (collect_garbage,),
    "after_step": (log_everything, evaluate, checkpoint, read_losses),
}
PLANTS = {fault.__name__: (where, fault) for where, faults in FAULTS_OF.items() for fault in faults}
