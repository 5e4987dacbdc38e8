"""Train the slow script of notebook 08: `slow_step.py` or `fixed_step.py`, on the bench's own loop.

A small CNN on JPEG files; `labkit.course.slow_script` has the fixes. A fix changes how the work is
done, never what is done: same samples, same order, same losses.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.utils.data import DataLoader

from labkit.bench.data import IMAGE_CLASSES, IMAGE_COUNT, JpegFiles, image_folder, make_loader
from labkit.bench.loop import Batch, Trainer
from labkit.course import fixed_step, slow_step
from labkit.orders import Order
from labkit.spec import Job
from labkit.stamps.events import EventLog

MEAN = (0.49, 0.48, 0.45)  # of each colour channel
STD = (0.25, 0.24, 0.26)


def step_of(fix: str, fixes: Collection[str]) -> ModuleType:
    """Return the module whose functions run: the fixed one where `fix` is among `fixes`."""
    return fixed_step if fix in fixes else slow_step


class Files(JpegFiles):
    """The JPEG files, read, decoded and resized one at a time."""

    def __init__(self, folder: Path, job: Job, fixes: Collection[str]):
        super().__init__(folder, job)
        records = [
            {"id": number, "label": number % IMAGE_CLASSES, "box": [number, number, 2.0]}
            for number in range(4 * IMAGE_COUNT)
        ]
        items = step_of("items", fixes)
        self.load_item = items.load_item
        self.manifest = items.open_manifest(json.dumps(records))
        self.packed = step_of("copies", fixes).packed

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels, _ = super().__getitem__(index)
        image, label = self.load_item(pixels, index % IMAGE_COUNT, self.manifest)
        return self.packed(image), label


class SlowTrainer(Trainer):
    """The script's training step: the bench's trainer with the lines of `slow_step.py`."""

    def __init__(self, job: Job, device: torch.device, fixes: Collection[str]):
        super().__init__(job, device)
        self.copy = step_of("copies", fixes).to_device
        self.step = step_of("launches", fixes)
        activation = step_of("memory", fixes).Activation
        assert isinstance(self.model, nn.Sequential)
        for place, layer in enumerate(self.model):
            if isinstance(layer, nn.ReLU):
                self.model[place] = activation()
        self.mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=device).view(3, 1, 1)

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        """Copy one batch: (B, 3, px, px) and (B,) int64."""
        return self.copy(images, self.device), labels.to(self.device)

    def inputs(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        """Return the normalized images, in the model's memory format, and the labels."""
        images = self.step.normalized(images, self.mean, self.std)
        return images.to(memory_format=self.layout), labels

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of logits (B, classes)."""
        return self.step.cross_entropy(logits.float(), targets)


def prepare(
    order: Order,
    job: Job,
    device: torch.device,
    log: EventLog,
) -> tuple[SlowTrainer, DataLoader]:
    """Return trainer and loader of a run of the script, for the bench."""
    cache = Path(order["cache"]) / "data"
    fixes = order["script"]["fixes"]
    images = image_folder(cache, job.image_px, log)
    log.stage("building the model")
    trainer = SlowTrainer(job, device, fixes)
    return trainer, make_loader(Files(images, job, fixes), job)
