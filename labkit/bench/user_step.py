"""The reader's own step in the place of the bench's training.

Where none is given the loop only takes the batches: then nothing is busy, and what is measured is
the loader alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from labkit.instruments.batch_contents import Batch
from labkit.spec import Job

NO_LOSS = torch.tensor(float("nan"))


class OwnStep:
    """The reader's step, or nothing, in the place of the bench's own Trainer."""

    side_stream = None

    def __init__(self, step: Callable[[Batch], object] | None, job: Job):
        self.job = job
        self.device = torch.device(job.device)
        self.step = step
        self.model = nn.Identity()

    def to_device(self, images: Batch, labels: torch.Tensor, /) -> tuple[Batch, torch.Tensor]:
        """Return the batch as it is: copying it is the step's business."""
        return images, labels

    def compute(self, images: Batch, _counted: torch.Tensor, /, update: bool) -> torch.Tensor:
        """Do the reader's step on a batch; return its loss, NaN where it returns none."""
        if self.step is None:
            return NO_LOSS
        loss = self.step(images)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return loss.detach().float().reshape(())  # as (1,) it would not fit the recorder's slot
        return torch.tensor(float(loss)) if isinstance(loss, (int, float)) else NO_LOSS

    def after_step(self) -> None:
        """Go on."""
