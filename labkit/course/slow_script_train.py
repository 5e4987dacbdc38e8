"""One training script with everything wrong with it, and a named fix for each of its bottlenecks.

A small CNN on JPEG files, on the bench's own loop; `labkit.course.slow_script` has the fixes. A fix
changes how the work is done, never what is done: same samples, same order, same losses.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from labkit.bench.data import CLASSES, COUNT, JpegFiles, jpeg_folder, make_loader
from labkit.bench.loop import Trainer
from labkit.bench.models import AdamW
from labkit.process.events import EventLog

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)  # of each colour channel
CHECKED = 3  # batches whose pixels are summed up, to prove that all stages see the same


class Files(JpegFiles):
    """The JPEG files, read, decoded and resized one at a time."""

    def __init__(self, folder: Path, job: Any, fixes: Sequence[str]):
        super().__init__(folder, job)
        self.lean, self.as_bytes = "items" in fixes, "copies" in fixes
        records = [{"id": i, "label": i % CLASSES, "box": [i, i, 2.0]} for i in range(4 * COUNT)]
        self.manifest = json.dumps(records)

    def __getitem__(self, ticket: tuple[int, int]) -> tuple[torch.Tensor, int]:
        pixels, label = super().__getitem__(ticket)
        if not self.lean:  # the habits of many a dataset: parse all, build objects, loop
            rows = [SimpleNamespace(**row) for row in json.loads(self.manifest)]
            label = rows[ticket[1] % COUNT].label
            rows = pixels.permute(1, 2, 0).tolist()  # (px, px, 3) as Python lists
            channels = [[[pixel[c] for pixel in row] for row in rows] for c in range(3)]
            pixels = torch.tensor(channels, dtype=torch.uint8)
        # As floats an image is four times as large, in the workers' queue and on the bus
        return (pixels if self.as_bytes else pixels.float().div_(255)), label


class HandmadeSilu(nn.Module):
    """SiLU as its formula is written: five passes over memory, each reading and writing it all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x times its sigmoid."""
        return x * (1.0 / (1.0 + torch.exp(-x)))


class SlowTrainer(Trainer):
    """The script's training step: the bench's trainer with bad habits, less those in `fixes`."""

    def __init__(
        self, job: Any, device: torch.device, fixes: Sequence[str], log: EventLog | None = None
    ):
        super().__init__(job, device)
        self.copies, self.launches = "copies" in fixes, "launches" in fixes
        self.log, self.seen, self.crc = log, 0, 0
        fused = "memory" in fixes
        for block in self.model.blocks:
            block[-1] = nn.SiLU() if fused else HandmadeSilu()
        if not fused:
            one_by_one = {} if self.launches else {"foreach": False}
            self.optimizer = AdamW(self.model.parameters(), lr=1e-3, **one_by_one)
        self.mean, self.std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))
        self.confusion = torch.zeros(CLASSES * CLASSES, device=device)

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> tuple:
        """Copy one batch, whole or scan line by scan line: (B, 3, px, px) and (B,) int64."""
        if self.log and self.seen < CHECKED:  # the same sum for bytes and for floats from 0 to 1
            pixels = images if images.dtype == torch.uint8 else (images * 255).round()
            pixels = np.ascontiguousarray(pixels.to(torch.uint8).numpy())
            self.seen, self.crc = self.seen + 1, zlib.crc32(pixels.tobytes(), self.crc)
            self.log.write("samples", batches=self.seen, crc32=self.crc)
        if self.copies:
            return super().to_device(images, labels)
        on_device = torch.empty_like(images, device=self.device)
        lines = zip(images.flatten(0, 2), on_device.flatten(0, 2), strict=True)
        for line, to in lines:  # a Python list, a launch and a trip over the bus for each
            to.copy_(torch.tensor(line.tolist(), device=self.device))
        return on_device, labels.to(self.device)

    def inputs(self, images: torch.Tensor, labels: torch.Tensor) -> tuple:
        """Return images in 0 to 1, less the channels' mean, over their deviation; and labels."""
        scale = 255 if images.dtype == torch.uint8 else 1
        if self.launches:
            images = images.to(memory_format=self.layout).float() / scale
            return (images - self.mean) / self.std, labels
        done = []
        for image in images:
            channels = zip(image.tolist(), MEAN, STD, strict=True)  # waits for the device
            scales = [(lines, 1 / (scale * s), m / s) for lines, m, s in channels]
            done.append([[[x * a - b for x in line] for line in lines] for lines, a, b in scales])
        return torch.tensor(done, device=self.device), labels

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of logits (B, classes), at once or number by number."""
        logits = logits.float()
        self.logits, self.labels = logits.detach(), labels
        if self.launches:
            return nn.functional.cross_entropy(logits, labels)
        each = []
        for row, label in zip(logits, labels, strict=True):
            row = row - row.max()
            total = sum(torch.exp(row[c]) for c in range(CLASSES))  # as in the textbook
            each.append(torch.log(total) - row[label.item()])  # waits for the device
        return torch.stack(each).mean()

    def after_step(self) -> None:
        """Keep the confusion matrix: on the device, or cell by cell through the host."""
        guess, labels = self.logits.argmax(dim=1), self.labels
        if self.launches:
            self.confusion.index_add_(0, labels * CLASSES + guess, torch.ones_like(labels).float())
            return
        for true in range(CLASSES):
            for said in range(CLASSES):
                hits = ((labels == true) & (guess == said)).sum().item()  # waits for the device
                self.confusion[true * CLASSES + said] += hits
        for parameter in self.model.parameters():
            _ = parameter.detach().norm().item()


def prepare(
    spec: dict, job: Any, device: torch.device, folder: Path, log: EventLog, stage: Any
) -> tuple[SlowTrainer, DataLoader]:
    """Return trainer and loader of a run of the script, for the bench."""
    cache, fixes = Path(spec["cache"]) / "data", spec["script"]["fixes"]
    made = jpeg_folder(cache, 2 * job.image_px, lambda *done: stage("making images", *done))
    stage("building the model")
    trainer = SlowTrainer(job, device, fixes, log)
    return trainer, make_loader(Files(made, job, fixes), job)
