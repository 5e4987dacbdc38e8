"""Put the lines of the slow script of notebook 08 into a run: slow ones, or fixed ones.

A fix changes how the work is done, never what is done: same samples, same order, same losses.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch
from torch import nn

from labkit.bench.data import IMAGE_CLASSES, IMAGE_COUNT, Batch, JpegFiles
from labkit.bench.loop import Trainer
from labkit.course import fixed_step, slow_step


class Files:
    """The JPEG files, read, decoded and resized one at a time, then handled by the script."""

    def __init__(self, images: JpegFiles, lines: SimpleNamespace):
        self.images = images
        self.lines = lines
        records = [
            {"id": number, "label": number % IMAGE_CLASSES, "box": [number, number, 2.0]}
            for number in range(4 * IMAGE_COUNT)
        ]
        self.manifest = lines.open_manifest(json.dumps(records))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels, _ = self.images[index]
        image, label = self.lines.load_item(pixels, index % IMAGE_COUNT, self.manifest)
        return self.lines.pack(image), label


def plant(fixed: str, images: JpegFiles, trainer: Trainer) -> Files:
    """Make a run one of the script: of `slow_step.py`'s functions those named in `fixed` are fixed.

    The bench calls this (`labkit.bench.carry_out.prepare`).
    """
    named = {name: getattr(fixed_step, name) for name in fixed.split()}
    lines = SimpleNamespace(**vars(slow_step) | named)

    def to_device(images: torch.Tensor, labels: torch.Tensor) -> Batch:
        return lines.to_device(images, trainer.device), labels.to(trainer.device)

    def inputs(images: torch.Tensor, labels: torch.Tensor) -> Batch:
        return lines.normalize(images).to(memory_format=trainer.layout), labels

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return lines.cross_entropy(logits.float(), targets)

    vars(trainer).update(to_device=to_device, inputs=inputs, loss=loss)
    assert isinstance(trainer.model, nn.Sequential)
    for place, layer in enumerate(trainer.model):
        if isinstance(layer, nn.ReLU):
            trainer.model[place] = lines.Activation()
    return Files(images, lines)
