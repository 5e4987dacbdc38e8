"""What a training step has to compute and to move, from the sizes of its model.

FLOPs are the model's own, 2 a multiply-add, forward and backward (Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", JMLR 24, 2023, app. B).

Of the bytes: weights W are read by forward and by backward, gradients, as large, are written,
activations A that autograd keeps are written and read; an update reads W, gradients and the two
moments of AdamW, and writes W and the moments: 3 W + 2 A + 7 W / accumulation_steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from labkit.bench import formats, peaks
from labkit.bench.data import IMAGE_CLASSES
from labkit.bench.formats import DTYPES
from labkit.bench.models import PATCH
from labkit.instruments import machine
from labkit.instruments.record_head import write_or_why
from labkit.spec import Job
from labkit.stamps.events import EventLog

FP32_BYTES = 4
ADAM = 2  # numbers of state for each weight: the two moments
KEPT_IN_LAYER = 14  # numbers for each of a token's: counted; fused attention keeps no scores


class Size(NamedTuple):
    """How large a model is; for one image."""

    first: int  # weights of the first layer
    others: int  # and of the others
    places: int  # that these are applied to: pixels, tokens
    products: int  # multiply-adds without weights
    kept: int  # numbers that autograd keeps until the backward pass


def size_of(job: Job) -> Size:
    """Return the size of the job's model; the head's weights, biases and norms are left out."""
    width, depth, px = job.width, job.depth, job.image_px
    pixels = 3 * px**2
    if job.model == "mlp":
        return Size(pixels * width, (depth - 1) * width**2, 1, 0, pixels + depth * width)
    if job.model == "cnn":
        places = ((px + 1) // 2) ** 2  # behind the stem
        kept = pixels + (2 * depth + 1) * places * width
        return Size(27 * width, 9 * depth * width**2, places, 0, kept)
    places = (px // PATCH) ** 2
    scores = 2 * depth * places**2 * width
    kept = pixels + KEPT_IN_LAYER * depth * places * width
    return Size(3 * PATCH**2 * width, 12 * depth * width**2, places, scores, kept)


def write_work(job: Job, device: torch.device, log: EventLog) -> None:
    """Write the `work` event: what a step takes. Never ends the run."""
    write_or_why(log, "work", lambda: work_of(job, device))


def work_of(job: Job, device: torch.device) -> dict[str, object]:
    """Return the `work` event: a step's FLOPs, the bytes it moves and holds; the device's peaks."""
    size = size_of(job)
    head = job.width * IMAGE_CLASSES
    # backward takes twice what forward does, but for images, which need no gradient
    products = 2 * size.first * size.places
    products += 3 * (size.others * size.places + size.products + head)
    weights = FP32_BYTES * (size.first + size.others + head)
    # autocast halves what is kept
    kept = job.batch_size * size.kept * (2 if job.precision in DTYPES else FP32_BYTES)
    update = (3 + 2 * ADAM) * weights / job.accumulation_steps
    return {
        "flops": 2 * products * job.batch_size,
        "bytes": round(3 * weights + 2 * kept + update),
        "held_bytes": (2 + ADAM) * weights + kept,
        "samples": job.batch_size,
        "precision": formats.computes_in(job.precision, job.model, device),
        "cache_bytes": machine.cache_bytes(device),
        "roof": peaks.kept(device),
    }
