"""What a change would bring, measured: the same step with twice the batch, and in BF16.

Timed after the run, interleaved, on the run's last batch, so that nothing else differs.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from labkit.bench import memory_limit

ROUNDS = 7
BUDGET_S = 0.3  # for all rounds; at least two are done
HOPELESS = 3.0  # a format this much slower in its first step is not tried again


def measure(trainer: Any, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float | None]:
    """Time one step's compute as it is, with twice the batch, and in BF16.

    Args:
        trainer: The run's trainer; its weights move on, so the run must be over.
        images: (B, 3, px, px) uint8 on the device.
        labels: (B,) int64 on the device.

    Returns:
        `plain_us`: median time of the compute, µs; `fixed_share`: the part of it (0 to 1) that
        does not grow with the batch; `bf16_speedup`: time as it is over time in BF16. None where
        it could not be tried.
    """
    kinds = {"plain": (images, labels, trainer.job.precision)}
    if not hasattr(trainer.model, "_orig_mod"):  # a compiled model would be compiled anew
        twice = (torch.cat([images, images]), torch.cat([labels, labels]))
        kinds["double"] = (*twice, trainer.job.precision)
        if trainer.job.precision == "fp32" and bf16_possible(trainer.device):
            kinds["bf16"] = (images, labels, "bf16")
    times = interleaved(trainer, kinds)
    plain = times["plain"]
    double, bf16 = times.get("double"), times.get("bf16")
    return {
        "plain_us": plain * 1e6,
        "fixed_share": None if double is None else min(max(2 - double / plain, 0.0), 1.0),
        "bf16_speedup": None if bf16 is None else plain / bf16,
    }


def interleaved(trainer: Any, kinds: dict[str, tuple]) -> dict[str, float]:
    """Time each kind of step in turn, round after round; return medians in s."""
    asked, times = trainer.job.precision, {name: [] for name in kinds}
    started = time.perf_counter()
    try:
        for turn in range(ROUNDS + 1):
            for name, (images, labels, precision) in list(kinds.items()):
                trainer.job.precision = precision
                try:
                    seconds = timed(trainer, images, labels)
                except RuntimeError as error:
                    if name == "plain" or not memory_limit.refused(error):
                        raise
                    trainer.optimizer.zero_grad(set_to_none=True)
                    del kinds[name]  # no room for it: the others stand
                    times.pop(name)
                    continue
                if turn:
                    times[name].append(seconds)  # the first of each warms up
                elif name == "bf16" and seconds > HOPELESS * timed_again(trainer, kinds, asked):
                    times[name].append(seconds)
                    del kinds[name]
            if turn >= 2 and time.perf_counter() - started > BUDGET_S:
                break
    finally:
        trainer.job.precision = asked
    return {name: median(seconds) for name, seconds in times.items() if seconds}


def timed_again(trainer: Any, kinds: dict[str, tuple], precision: str) -> float:
    """Time the plain step once more."""
    trainer.job.precision = precision
    return timed(trainer, *kinds["plain"][:2])


def timed(trainer: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return how long one compute takes on the device, s."""
    on_cpu = trainer.device.type == "cpu"
    clock = time.thread_time if on_cpu else time.perf_counter  # not the time others had the core
    finish(trainer.device)
    start = clock()
    trainer.compute(images, labels, update=True)
    finish(trainer.device)
    return clock() - start


def finish(device: torch.device) -> None:
    """Wait for the device; a CPU has nothing in flight."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def bf16_possible(device: torch.device) -> bool:
    """Whether BF16 is worth a try: every CPU runs it, if slowly; of GPUs, Ampere and later."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(False)
