"""A small real training run at several batch sizes, learning rates and warm-ups."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from labkit.bench import data
from labkit.bench.models import make_model
from labkit.bench.workbench import Workbench

TRAINED, HELD_OUT = 2048, 1024  # images
PX = 16
WARMUP_EPOCHS = 1
CURVE = 64  # points kept of a loss curve

# (what it is called, batch times, learning rate times, whether it warms up)
CASES = [
    ("base", 1, 1, False),
    ("batch x4, same lr", 4, 1, False),
    ("batch x4, lr x4", 4, 4, False),
    ("batch x4, lr x4, warm-up", 4, 4, True),
    ("batch x16, lr x16", 16, 16, False),
    ("batch x16, lr x16, warm-up", 16, 16, True),
    ("batch x64, lr x64, warm-up", 64, 64, True),
]


def measure(job: Any, bench: Workbench) -> None:
    """Train a small CNN on the bench's pictures with plain SGD, for the same samples every time.

    The linear scaling rule (Goyal et al. 2017, arXiv:1706.02677): batch times k, learning rate
    times k, warmed up over the first epochs. All cases see the same images `epochs` times; a larger
    batch makes fewer updates of them. Every case is trained with `seeds` seeds. For the held-out
    loss batch norm takes the statistics of the held-out images themselves: the running ones lag
    behind after few updates, which is not the question here.
    """
    pixels, labels = (tensor.to(bench.device) for tensor in pictures())
    for i, (name, batches, rates, warm) in enumerate(CASES):
        bench.stage(f"training: {name}", i, len(CASES))
        batch, lr = job.batch_size * batches, job.lr * rates
        if batch > TRAINED:
            bench.skip(name, f"a batch of {batch} is more than the {TRAINED} training images")
            continue
        runs = [train(job, pixels, labels, batch, lr, warm, seed) for seed in range(job.seeds)]
        curves = zip(*(run["loss"] for run in runs), strict=True)
        values = {
            "lr": lr, "updates": job.epochs * (TRAINED // batch),
            "samples": runs[0]["samples"], "loss": [statistics.median(each) for each in curves],
            "held_out": [r["held_out"] for r in runs], "right": [r["right"] for r in runs],
        }  # fmt: skip
        bench.write(name, values=values, batch_size=batch, lr=lr, warmup=warm)


def train(
    job: Any, pixels: torch.Tensor, labels: torch.Tensor, batch: int, lr: float, warm: bool,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Train once; return the loss curve against samples seen, and the held-out loss and share."""
    torch.manual_seed(seed)
    model = make_model("cnn", job.width, job.depth, data.CLASSES, PX).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    losses, warmup = [], WARMUP_EPOCHS * TRAINED
    for _ in range(job.epochs):
        for chosen in torch.randperm(TRAINED, generator=order).split(batch):
            if warm:
                share = min(1.0, (len(losses) + 1) * batch / warmup)
                optimizer.param_groups[0]["lr"] = lr * share
            chosen = chosen.to(pixels.device)
            loss = cross_entropy(model(pixels[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    with torch.no_grad():
        logits = model(pixels[TRAINED:])  # (HELD_OUT, classes)
        held_out = cross_entropy(logits, labels[TRAINED:]).item()
        right = (logits.argmax(1) == labels[TRAINED:]).float().mean().item()
    samples, curve = in_stretches(torch.stack(losses).tolist(), batch)
    return {"samples": samples, "loss": curve, "held_out": held_out, "right": right}


def in_stretches(losses: list[float], batch: int) -> tuple[list[int], list[float]]:
    """Average the losses over equal stretches, at most CURVE of them: (samples seen, mean loss)."""
    stretches = np.array_split(np.arange(len(losses)), min(CURVE, len(losses)))
    samples = [int((part[-1] + 1) * batch) for part in stretches]
    return samples, [float(np.mean([losses[i] for i in part])) for part in stretches]


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bench's pictures as floats (N, 3, PX, PX) around 0, and their labels (N,)."""
    count = TRAINED + HELD_OUT
    drawn = np.stack([data.draw_image(index, PX) for index in range(count)])  # (N, PX, PX, 3) uint8
    pixels = torch.from_numpy(drawn).permute(0, 3, 1, 2).float().div_(255).sub_(0.5).mul_(4)
    return pixels.contiguous(), torch.arange(count) % data.CLASSES
