"""What recording costs a training loop, paired: each step is recorded or not by lot.

Blocks of steps cannot resolve 1 % on a noisy machine (A/A noise is 3-5 %); steps interleaved at
random can. Two of the three lots are the same unrecorded step: what they differ by is the noise of
this measurement. `python -m labkit.bench.own_cost` prints the result as JSON.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import torch

from labkit.bench.loop import Trainer
from labkit.bench.timeline import HostTimeline
from labkit.process.events import now_ns

STEP_MS = 1.4
STEPS = 15_000
PLAIN, PLAIN_TOO, RECORDED = range(3)


def trainer_of(step_ms: float) -> tuple[Trainer, torch.Tensor, torch.Tensor]:
    """Return the default CNN on one thread, and images so large that a step takes `step_ms`."""
    torch.set_num_threads(1)
    job = SimpleNamespace(
        seed=0, model="cnn", width=8, depth=1, image_px=48, precision="fp32", compile=None,
        channels_last=False, fused_optimizer=False, accumulation_steps=1, non_blocking=False,
        prefetch_to_device=False,
    )  # fmt: skip
    trainer = Trainer(job, torch.device("cpu"))
    for px in range(16, 256, 2):
        images = torch.randint(0, 256, (2, 3, px, px), dtype=torch.uint8)  # (B, 3, px, px)
        labels = torch.randint(0, 10, (2,))
        took = []
        for _ in range(60):
            start = now_ns()
            trainer.compute(images, labels, update=True)
            took.append(now_ns() - start)
        if statistics.median(took[20:]) >= step_ms * 1e6:
            break
    return trainer, images, labels


def measure() -> dict[str, float]:
    """Return the step time without and with recording (medians, ms), the cost and the noise.

    Cost and noise are shares of the step: recorded against not recorded, and one half of the
    unrecorded steps against the other.
    """
    trainer, images, labels = trainer_of(STEP_MS)
    lots = random.Random(0)
    took: tuple[list[int], ...] = ([], [], [])
    with tempfile.TemporaryDirectory() as folder:
        timeline = HostTimeline(folder)
        for i in range(STEPS):
            lot = lots.randrange(3)
            start = now_ns()
            if lot == RECORDED:
                asked = now_ns()
                ready = timeline.copying()
                batch = trainer.to_device(images, labels)
                copied = timeline.copied()
                timeline.computing()
                loss = trainer.compute(*batch, update=True)
                timeline.step(i, asked, ready, copied, labels.numel(), loss)
            else:
                batch = trainer.to_device(images, labels)
                loss = trainer.compute(*batch, update=True)
            took[lot].append(now_ns() - start)
    first, second, recorded = (statistics.median(lot) / 1e6 for lot in took)
    plain = statistics.median(took[PLAIN] + took[PLAIN_TOO]) / 1e6
    return {
        "recorder_step_ms": plain,
        "recorder_recorded_step_ms": recorded,
        "recorder_cost_share": recorded / plain - 1,
        "recorder_noise_share": abs(second - first) / plain,
    }


def hang(_argument: str, dataset: Any, trainer: Trainer) -> Any:
    """Plant a loop that hangs after a step, deaf to Stop: for timing the forced one."""

    def deaf() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(3600)

    trainer.after_step = deaf
    return dataset


if __name__ == "__main__":
    print(json.dumps(measure()))
