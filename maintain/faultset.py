"""The labelled fault set, its runs, and the score of the diagnosis on them.

`python maintain/faultset.py [--seeds 5]`. The exit code is 1 where fewer than 90 % are named right.

A label is what was planted: each fault names the resource it takes from the device. The bench
imports this file and plants it for real (`plant`). The thresholds of the diagnosis were set on
other severities and seeds than these. A GPU does a CPU's step in a fraction of a millisecond, and
then waits for launches whatever was planted: there the base is larger, and `on_gpu` has what
differs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset

from labkit import Pipeline, Run, machine
from labkit.api import launch
from labkit.bench.models import AdamW
from labkit.results.hardware import Machine

FASTER = 1.25  # a 16-bit format counts as the faster one from this speed-up on
# Of a base: what is planted can exceed it, and on a GPU it is 10 times the launches
STEP_MS = {"cpu": 30.0, "gpu": 10.0}

Base = dict[str, object]  # knobs; in a `Fault`, `...` stands for the amount
Row = dict[str, Any]  # one run: the fault and the seed; what is expected, and named


# == what is planted ===============================================================================


class SlowItems(Dataset):
    """A dataset of which `work(dataset, index)` is done for every sample fetched."""

    def __init__(self, dataset, work):
        self.dataset = dataset
        self.work = work
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.work(self.dataset, index)
        return self.dataset[index]

    def _batch(self, indices):
        for index in indices:
            self.work(self.dataset, index)
        return self.dataset.__getitems__(indices)


def on_stem(trainer, change):
    """Pass what the first convolution or linear layer makes through `change`."""
    layers = trainer.model.modules()
    stem = next(layer for layer in layers if isinstance(layer, (nn.Conv2d, nn.Linear)))
    stem.register_forward_hook(lambda _module, _inputs, out: change(out))


# Of an item: (amount, dataset, index)


def slow_decode(amount, dataset, index):
    for _ in range(amount):
        _ = dataset[index]


def object_building(amount, _dataset, _index):
    records = [{"id": i, "box": (i, i + 1, 2.0), "tag": str(i)} for i in range(amount)]
    _ = sum(record["id"] for record in records)


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


# Of the trainer: (amount, trainer)


def small_copies(amount, trainer):
    plain = trainer.to_device

    def to_device(images, labels):
        copied = []
        for piece in images.flatten(2).chunk(amount, dim=2):
            parts = [part.to(trainer.device, copy=True) for part in piece]
            copied.append(torch.stack(parts))
        _, labels = plain(images[:0], labels)
        return torch.cat(copied, dim=2).view(images.shape), labels

    trainer.to_device = to_device


def one_by_one_optimizer(amount, trainer):
    extra = nn.ParameterList(torch.zeros(16) for _ in range(amount)).to(trainer.device)
    on_stem(trainer, lambda out: out + torch.cat(list(extra)).sum())
    # Nothing else is one by one: PyTorch's default on a GPU is to update them all at once
    parameters = [*trainer.model.parameters(), *extra]
    trainer.optimizer = AdamW(parameters, lr=1e-3, foreach=False)


def read_losses(amount, trainer):
    after_step = trainer.after_step

    def read():
        parameters = itertools.cycle(trainer.model.parameters())
        for parameter in itertools.islice(parameters, amount):
            parameter.detach()[:1].sum().item()
        return after_step and after_step()

    trainer.after_step = read


OF_ITEMS = (slow_decode, object_building)
OF_THE_STEM = (launch_storm, python_heavy, elementwise_chain)
OF_THE_TRAINER = (small_copies, one_by_one_optimizer, read_losses)
PLANTS = {fault.__name__: fault for fault in (*OF_ITEMS, *OF_THE_STEM, *OF_THE_TRAINER)}


def plant(text, dataset, trainer):
    """Plant "python_heavy@40"; return the dataset with its fault. The bench calls this."""
    name, _, amount = text.partition("@")
    fault = partial(PLANTS[name], int(amount))
    if fault.func in OF_ITEMS:
        return SlowItems(dataset, fault)
    if fault.func in OF_THE_STEM:
        on_stem(trainer, fault)
    else:
        fault(trainer)
    return dataset


# == the set =======================================================================================


@dataclass(frozen=True)
class Fault:
    """One way to make a pipeline slow, in two severities: the seeds take turns."""

    name: str
    expected: str  # what a right diagnosis names first
    amounts: tuple[int, int]  # its size at each severity; the comments below have the units
    plant: str | None = None  # a name in PLANTS; None where knobs alone make the fault
    knobs: Base = field(default_factory=dict)  # those it needs
    only: str | None = None  # "cpu" or "gpu", where it does not show on the other
    needs_bf16: bool = False  # a 16-bit format that is faster here
    on_gpu: Base = field(default_factory=dict)  # fields that differ there

    def on(self, kind: str) -> Fault:
        """Return the fault as it is planted on a "cpu" or "gpu"."""
        return replace(self, **self.on_gpu, on_gpu={}) if kind == "gpu" else self

    def planted(self, seed: int) -> str | None:
        """What the bench plants; None where knobs alone make the fault."""
        return self.plant and f"{self.plant}@{self.amounts[seed % 2]}"

    def pipeline(self, seed: int, base: Base) -> Pipeline:
        """Return the base with the knobs of the fault."""
        amount = self.amounts[seed % 2]
        knobs = base | self.knobs
        sized = {name: amount if value is ... else value for name, value in knobs.items()}
        return Pipeline(**sized, seed=seed)


# A healthy step of 20 to 40 ms on one core; `base_here` finds precision and depth. On a GPU the
# width makes a layer many times as long as its launches, also on an H200 in BF16 (0.9 ms),
# and one layer a short step on a T4 (14 ms in FP16).
BOTH = {
    "dataset": "array",
    "model": "cnn",
    "image_px": 64,
    "seconds": 10.0,
    "fused_optimizer": True,
}
BASES: dict[str, Base] = {
    "cpu": BOTH | {"width": 48, "depth": 3, "steps": 24},
    "gpu": BOTH | {"width": 768, "depth": 2, "steps": 40},
}
JPEG = {"dataset": "jpeg", "io_ms": 0.0, "num_workers": 1}
SMALL = {"width": 16, "depth": 3}  # on a GPU: next to nothing beside what is planted
STALLS = {"stall_ms": ..., "stall_every": 6}
TRANSFORMER = {"model": "transformer", "width": ..., "depth": 1, "batch_size": 64}
ON_A_CPU = {"depth": 3, "image_px": 48, "batch_size": 16, "precision": "fp32"}
LARGE_MAPS = {"width": 256, "depth": 1, "image_px": 128, "batch_size": 64}  # passes over 134 MB
PAGEABLE = {"width": 4, "depth": 1, "image_px": 224, "batch_size": ..., "num_workers": 12}
MLP = {"model": "mlp", "width": ..., "image_px": 48, "fused_optimizer": False, "precision": "fp32"}

FAULTS = (
    # every file decoded this many times more
    Fault("slow decode", "input", (6, 12), "slow_decode", JPEG),
    # dictionaries built for every item
    Fault("object building", "input", (2500, 5000), "object_building",
          on_gpu={"amounts": (9000, 18000)}),
    # ms of stall in one of 6 batches
    Fault("slow-disk stalls", "input", (220, 450), knobs=STALLS),
    # ms of storage wait per item, num_workers=0
    Fault("no workers", "input", (2, 5), knobs={"io_ms": ...}, on_gpu={"amounts": (4, 8)}),
    # ms of storage wait per item, num_workers=1
    Fault("too few workers", "input", (7, 15), knobs=JPEG | {"io_ms": ...}),
    # pieces a sample is copied in
    Fault("many small copies", "transfer", (400, 1000), "small_copies",
          on_gpu={"amounts": (150, 300)}),
    # samples of 224 px, not pinned
    Fault("pageable copies", "transfer", (96, 192), knobs=PAGEABLE, only="gpu"),
    # .item() calls a step
    Fault("sync every step", "launch", (350, 700), "read_losses", only="gpu"),
    # pairs of operators on 8 numbers
    Fault("launch storm", "launch", (2500, 6000), "launch_storm",
          on_gpu={"amounts": (500, 1200), "knobs": SMALL}),
    # thousand turns of a loop
    Fault("Python-heavy model", "launch", (500, 1200), "python_heavy",
          on_gpu={"amounts": (1000, 2000)}),
    # small parameters updated one by one
    Fault("foreach off", "launch", (900, 2000), "one_by_one_optimizer",
          on_gpu={"amounts": (250, 600), "knobs": SMALL}),
    # GELUs written out
    Fault("elementwise chain", "memory_bandwidth", (3, 6), "elementwise_chain",
          on_gpu={"amounts": (6, 12), "knobs": LARGE_MAPS}),
    # features of an MLP
    Fault("unfused optimizer", "memory_bandwidth", (512, 768), knobs=MLP,
          on_gpu={"amounts": (6144, 8192), "knobs": MLP | {"depth": 4}}),
    # channels
    Fault("FP32 where BF16 would do", "precision", (48, 80), needs_bf16=True,
          knobs={"width": ..., "precision": "fp32"}, on_gpu={"amounts": (384, 512)}),
    # features, no multiple of 8
    Fault("unaligned size", "precision", (2815, 3327), knobs=TRANSFORMER, only="gpu"),
    # channels
    Fault("healthy CNN", "compute", (48, 64), knobs={"width": ...},
          on_gpu={"amounts": (768, 1024)}),
    # features
    Fault("healthy transformer", "compute", (160, 192), knobs=TRANSFORMER | ON_A_CPU,
          on_gpu={"amounts": (4096, 5120), "knobs": TRANSFORMER | {"batch_size": 96}}),
    # channels, real files
    Fault("healthy with a worker", "compute", (72, 96), knobs=JPEG | {"width": ...},
          on_gpu={"amounts": (1792, 2304),
                  "knobs": JPEG | {"width": ..., "image_px": 32, "num_workers": 2}}),
)  # fmt: skip


# == its runs ======================================================================================


def finished(pipeline: Pipeline, planted: str | None = None) -> Run:
    """Run a pipeline with "name@amount" planted in it; raises RuntimeError where it fails."""
    run = launch(pipeline, fault=planted and f"faultset:plant:{planted}").wait_or_raise()
    if run.outcome != "finished" or not run.throughput:
        raise RuntimeError(f"It did not finish: {run.error or run.outcome}")
    return run


def cannot_show(fault: Fault, base: Base, kind: str) -> str | None:
    """Return why a fault cannot show on this base and kind of device; None if it can."""
    if fault.only not in (None, kind):
        return f"shows on a {fault.only.upper()} only"
    if fault.needs_bf16 and base["precision"] == "fp32":
        return "BF16 is not faster than FP32 on this device (measured)"
    return None


def base_here() -> tuple[Base, Machine]:
    """Return the healthy base, its faster format and its depth measured here, and the machine."""
    base = BASES[machine().kind] | {"precision": "fp32"}
    plain = finished(Pipeline(**base))
    half = "bf16"
    speedup = (plain.xray_facts or {}).get("bf16_speedup")
    step_ms = median(plain.steps_ms[:, 2])
    if speedup is None and plain.machine.kind == "gpu":
        rounded = finished(Pipeline(**base | {"precision": "fp16", "xray": False}))
        half = rounded.pipeline.precision
        speedup = step_ms / median(rounded.steps_ms[:, 2])
    if speedup and speedup > FASTER:
        base["precision"] = half
        step_ms /= speedup
    base["depth"] = max(1, round(base["depth"] * STEP_MS[plain.machine.kind] / step_ms))
    return base, plain.machine


@dataclass
class Score:
    """What the diagnosis named, run by run; "unsure" is never right."""

    machine: str
    rows: list[Row]
    skipped: dict[str, str]  # faults that cannot show here, and why

    @property
    def wrong(self) -> list[Row]:
        """The runs whose first-ranked bottleneck is not the planted one."""
        return [row for row in self.rows if row["named"] != row["expected"]]

    @property
    def accuracy(self) -> float:
        """The share of the runs that were named right."""
        return 1 - len(self.wrong) / len(self.rows)

    def __str__(self) -> str:
        table = pd.DataFrame(self.rows)
        lines = [
            f"On {self.machine}: {len(self.rows)} runs, {self.accuracy:.1%} right",
            pd.crosstab(table["expected"], table["named"]).to_string(),
            *("  {fault}, seed {seed}: named {named}".format(**row) for row in self.wrong),
            *(f"  not run: {name}: {why}" for name, why in self.skipped.items()),
        ]
        return "\n".join(lines)


def result_of(fault: Fault, seed: int, base: Base) -> Row:
    """Run a fault and return what was planted, and what the diagnosis named."""
    for _ in range(2):
        found = finished(fault.pipeline(seed, base), fault.planted(seed)).diagnose()
        if found.findings[0].cause != "neighbour":  # else others used the device: once more
            break
    row = {"fault": fault.name, "seed": seed, "expected": fault.expected}
    return row | {"named": found.bottleneck, "why": found.findings[0].cause}


def run_set(seeds: int = 5, faults: Sequence[Fault] = FAULTS) -> Score:
    """Run the faults on this machine once for each of the first seeds; return the score."""
    base, here = base_here()
    skipped = {fault.name: why for fault in faults if (why := cannot_show(fault, base, here.kind))}
    shown = [fault.on(here.kind) for fault in faults if fault.name not in skipped]
    rows = []
    for seed, fault in itertools.product(range(seeds), shown):
        rows.append(result_of(fault, seed, base))
        print(rows[-1], file=sys.stderr)
    return Score(here.name, rows, skipped)


def main() -> int:
    """Score the diagnosis; return 1 where fewer than 90 % are named right."""
    here = str(Path(__file__).parent)  # the bench that a fault is planted in imports this file, too
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    score = run_set(parser.parse_args().seeds)
    print(score)
    return int(score.accuracy < 0.9)


if __name__ == "__main__":
    sys.exit(main())
