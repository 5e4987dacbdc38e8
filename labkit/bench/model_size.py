"""The size of the model for the device, where its pipeline leaves that open: a table.

On a CPU a step takes 5 to 6 ms on one core. On a GPU it takes 3 to 30 ms for the default batch in
FP32, so that the default loader starves any card: they are told apart by their memory, which grows
with their speed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from labkit.spec import PX, Job


class Size(NamedTuple):
    """How large a model is."""

    width: int
    depth: int


ON_CPU = {"cnn": Size(16, 2), "mlp": Size(128, 3), "transformer": Size(64, 2)}
TEXTBOOK = 2  # a CPU's 50 ms delay goes with 10 ms of compute, and takes no core from the model
ON_GPU = {  # by the least memory of a card, GiB
    60: {"cnn": Size(320, 12), "mlp": Size(8192, 8), "transformer": Size(1024, 9)},
    20: {"cnn": Size(320, 4), "mlp": Size(8192, 3), "transformer": Size(1024, 3)},
    10: {"cnn": Size(320, 1), "mlp": Size(4096, 2), "transformer": Size(1024, 1)},
    0: {"cnn": Size(160, 1), "mlp": Size(4096, 1), "transformer": Size(512, 1)},
}


def fill(job: Job, device: torch.device) -> None:
    """Set `job.width` and `job.depth` where they are None; of images too, if nobody has."""
    job.image_px = job.image_px or PX
    if device.type == "cpu":
        width, depth = ON_CPU[job.model]
        if job.dataset == "sleep":
            depth *= TEXTBOOK
    else:
        width, depth = ON_GPU[_memory_class(device)][job.model]
        if job.model == "cnn" and job.image_px > PX:  # as much arithmetic a layer on larger images
            width = max(32, round(width * PX / job.image_px / 32) * 32)
    job.width = job.width or width
    job.depth = job.depth or depth


def _memory_class(device: torch.device) -> int:
    """Return the key of a GPU in `ON_GPU`; Apple's, whose memory is the CPU's, is the least."""
    if device.type != "cuda":
        return min(ON_GPU)
    gib = torch.cuda.get_device_properties(device).total_memory / 2**30
    return max(least for least in ON_GPU if least <= gib)
