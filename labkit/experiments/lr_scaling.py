"""A small real training run at several batch sizes, learning rates and warm-ups."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from labkit.experiments.measure import page, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, functional = Later("torch"), Later("torch.nn.functional")
data, models = Later("labkit.bench.data"), Later("labkit.bench.models")

TRAINED, HELD_OUT = 2048, 1024  # images
PX = 16
CURVE = 64  # points kept of a loss curve
CUT = 3.0  # a held-out loss above it is drawn as this

CASES = [  # what it is called, batch times, learning rate times
    ("base", 1, 1), ("batch x4, same lr", 4, 1),
    ("batch x4, lr x4", 4, 4), ("batch x4, lr x4, warm-up", 4, 4),
    ("batch x16, lr x16", 16, 16), ("batch x16, lr x16, warm-up", 16, 16),
    ("batch x64, lr x64, warm-up", 64, 64),
]  # fmt: skip


@experiment(
    "larger batches and the learning rate: a small real training run",
    batch_size=knob(16, "samples of the smallest batch", low=1, high=TRAINED),
    lr=knob(0.02, "learning rate of the smallest batch", low=1e-6, high=10),
    epochs=knob(4, "passes over the images", low=1, high=100),
    seeds=knob(3, "trainings of each case", low=1, high=100),
    width=knob(16, "channels of the CNN", low=1, high=1024),
    depth=knob(2, "blocks of the CNN", low=1, high=64),
)
def lr_scaling(job: Any, bench: Any) -> None:
    """Train a small CNN with plain SGD, for the same samples every time.

    The linear scaling rule (Goyal et al. 2017, arXiv:1706.02677): batch times k, learning rate
    times k, with a warm-up: there from the small batch's rate over five epochs, here from near 0
    over one. For the held-out loss batch norm takes the held-out images' own statistics: the
    running ones lag behind after few updates.
    """
    count = TRAINED + HELD_OUT
    drawn = np.stack([data.draw_image(index, PX) for index in range(count)])  # (N, PX, PX, 3) uint8
    pixels = torch.from_numpy(drawn).to(bench.device).permute(0, 3, 1, 2).contiguous()
    pixels = pixels.float().div_(255).sub_(0.5).mul_(4)  # around 0
    labels = torch.arange(count, device=bench.device) % data.CLASSES
    for i, (name, batches, rates) in enumerate(CASES):
        bench.stage(f"training: {name}", i, len(CASES))
        batch, lr, warm = job.batch_size * batches, job.lr * rates, "warm-up" in name
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
    """Train once; return the loss against samples seen, and the held-out loss and share right."""
    torch.manual_seed(seed)
    model = models.make_model("cnn", job.width, job.depth, data.CLASSES, PX).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order, losses = torch.Generator().manual_seed(seed), []
    for _ in range(job.epochs):
        for chosen in torch.randperm(TRAINED, generator=order).split(batch):
            share = min(1.0, (len(losses) + 1) * batch / TRAINED) if warm else 1.0  # an epoch
            optimizer.param_groups[0]["lr"] = lr * share
            chosen = chosen.to(pixels.device)
            loss = functional.cross_entropy(model(pixels[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    with torch.no_grad():
        logits = model(pixels[TRAINED:])  # (HELD_OUT, classes)
        held_out = functional.cross_entropy(logits, labels[TRAINED:]).item()
        right = (logits.argmax(1) == labels[TRAINED:]).float().mean().item()
    stretches = np.array_split(torch.stack(losses).tolist(), min(CURVE, len(losses)))
    ends = np.cumsum([len(part) for part in stretches]) * batch
    return {"samples": ends.tolist(), "loss": [float(part.mean()) for part in stretches],
            "held_out": held_out, "right": right}  # fmt: skip


@lr_scaling.figure
def draw(measured: Any) -> Any:
    """Draw the training loss against samples seen, and below it each case's held-out loss."""
    series, rows = [], []
    for point, colour in zip(measured, style.LINES, strict=False):
        values, dash = point.values, "--" if point.case["warmup"] else "-"
        loss = [math.nan if value is None else value for value in values["loss"]]
        series.append(primitives.Series("", values["samples"], loss, colour, dash, ""))
        losses = [min(loss, CUT) for loss in values["held_out"] if loss is not None]
        middle = statistics.median(losses or [CUT])
        right = statistics.median(share or 0 for share in values["right"])
        text = f"{middle:.2f}, {right:.0%} right, {values['updates']} updates"
        rows.append(primitives.Bar(point.of, middle, text, colour, marks=losses))
    figure, (curves, ends) = page(
        measured, [(0.1, 2.3), (0.62, primitives.rows_in(len(rows)))], left_in=2.4,
        title="the same samples, other batches and learning rates (median of the seeds)",
    )  # fmt: skip
    primitives.lines(curves, series, "samples seen (dashed: warm-up)",
                     "training loss (colours as below)", log="y")  # fmt: skip
    curves.set_ylim(top=12)
    label = f"held-out loss at the end (bar: median, marks: each seed; cut off at {CUT:g})"
    primitives.hbars(ends, rows, label)
    return figure
