"""What recording costs a training loop, paired: each step is recorded or not by a coin toss.

Blocks of steps cannot resolve 1 % on a noisy machine (A/A noise is 3-5 %); steps interleaved at
random can. `python -m labkit.bench.own_cost` prints the result as JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from types import SimpleNamespace

import torch

from labkit.bench.events import now_ns
from labkit.bench.loop import Trainer
from labkit.bench.timeline import HostTimeline

STEP_MS = 1.4
STEPS = 10_000


def trainer_of(step_ms: float) -> tuple[Trainer, torch.Tensor, torch.Tensor]:
    """Return the default CNN on one thread, and a batch so large that a step takes `step_ms`."""
    torch.set_num_threads(1)
    job = SimpleNamespace(
        seed=0, model="cnn", width=16, depth=2, image_px=48, precision="fp32", compile=None,
        channels_last=False, fused_optimizer=False, accumulation_steps=1, non_blocking=False,
        prefetch_to_device=False,
    )  # fmt: skip
    trainer = Trainer(job, torch.device("cpu"))
    for size in range(1, 64):
        images = torch.randint(0, 256, (size, 3, 48, 48), dtype=torch.uint8)
        labels = torch.randint(0, 10, (size,))
        took = []
        for _ in range(40):
            start = now_ns()
            trainer.compute(images, labels, update=True)
            took.append(now_ns() - start)
        if statistics.median(took[10:]) >= step_ms * 1e6:
            break
    return trainer, images, labels


def measure() -> dict[str, float]:
    """Return the step time without and with recording (medians, ms) and the cost as a share."""
    trainer, images, labels = trainer_of(STEP_MS)
    coin = random.Random(0)
    took: tuple[list[int], list[int]] = ([], [])  # without, with
    with tempfile.TemporaryDirectory() as folder:
        timeline = HostTimeline(folder)
        for i in range(STEPS):
            recorded = coin.random() < 0.5
            start = now_ns()
            if recorded:
                asked = now_ns()
                ready = now_ns()
                timeline.copying()
                batch = trainer.to_device(images, labels)
                timeline.copied()
                copied = now_ns()
                timeline.computing()
                loss = trainer.compute(*batch, update=True)
                timeline.step(i, (asked, ready, copied, now_ns()), len(labels), loss)
            else:
                trainer.compute(*trainer.to_device(images, labels), update=True)
            took[recorded].append(now_ns() - start)
    without, with_it = (statistics.median(side) / 1e6 for side in took)
    return {
        "recorder_step_ms": without,
        "recorder_recorded_step_ms": with_it,
        "recorder_cost_share": with_it / without - 1,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
