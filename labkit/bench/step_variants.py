"""One step timed as it is, with another batch, and in BF16."""

from __future__ import annotations

import time
from operator import truediv
from statistics import median
from typing import NamedTuple

import torch

from labkit.bench import formats
from labkit.bench.loop import Trainer
from labkit.instruments import devices

ROUNDS = 7
BUDGET_S = 0.45  # for all rounds; at least two are done
FEW_ROWS = 8  # of a batch: a quarter of it must have two, which normalising a batch needs
HOPELESS = 3.0  # BF16 so much slower is not tried again


class StepVariant(NamedTuple):
    """A way to compute a step: a batch on the device, and a number format."""

    images: torch.Tensor
    labels: torch.Tensor
    precision: str


def other_settings(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor
) -> dict[str, float | None]:
    """Time one step's compute as it is, with another batch, and in BF16, in turn; then compare.

    `fixed_share` is the part (0 to 1) that does not grow with the batch. The weights move on.
    What is compared are neighbours: a machine that others use has another speed a second later.
    """
    asked = trainer.job.precision
    whole = len(labels)
    # A quarter is quick, and least disturbed; but to a GPU it may be as much work as the whole
    quick = trainer.device.type == "cpu" and whole >= FEW_ROWS
    rows = whole // 4 if quick else 2 * whole
    plain = StepVariant(images, labels, asked)
    variants = {"plain": plain}
    if not trainer.job.compile:  # it would compile anew
        variants["resized"] = StepVariant(resized(images, rows), resized(labels, rows), asked)
        if asked in ("fp32", "ieee") and not formats.why_not("bf16", trainer.device):
            variants["bf16"] = plain._replace(precision="bf16")
    ratio = _times_as_long(trainer, variants)
    fixed = None
    if "resized" in ratio:  # of the straight line through both
        resize = rows / whole
        fixed = min(max((ratio["resized"] - resize) / (1 - resize), 0.0), 1.0)
    return {
        "fixed_share": fixed,
        "bf16_speedup": 1 / ratio["bf16"] if "bf16" in ratio else None,
    }


def _times_as_long(trainer: Trainer, variants: dict[str, StepVariant]) -> dict[str, float]:
    """Return how many times as long as a plain step each takes.

    The first of each warms up: on a GPU it loads kernels.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    started = time.perf_counter()
    for turn in range(1 + ROUNDS):
        for name, variant in variants.items():
            times[name].append(_timed(trainer, variant))
        is_slow = trainer.device.type == "cpu" and "bf16" in variants
        if is_slow and times["bf16"][-1] > HOPELESS * times["plain"][-1]:
            del variants["bf16"]  # the time is better spent on the others
        if turn >= 2 and time.perf_counter() - started > BUDGET_S:
            break
    ratios = {name: list(map(truediv, took, times["plain"])) for name, took in times.items()}
    return {name: median(each[1:] or each) for name, each in ratios.items()}


def resized(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first `rows` of a tensor; where it has fewer, all of them twice."""
    return tensor[:rows] if rows <= len(tensor) else torch.cat([tensor, tensor])


def _timed(trainer: Trainer, setting: StepVariant) -> float:
    """Return how long one compute takes on the device, s."""
    # On a CPU not the time in which others had the core
    clock = time.thread_time if trainer.device.type == "cpu" else time.perf_counter
    asked = trainer.job.precision
    trainer.job.precision = setting.precision
    try:
        devices.finish(trainer.device)
        start = clock()
        trainer.compute(setting.images, setting.labels, update=True)
        devices.finish(trainer.device)
        return clock() - start
    finally:
        trainer.job.precision = asked
