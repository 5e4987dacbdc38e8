"""Both sides of MFU and MBU: what a training step needs, and what this device can do.

FLOPs are the model's own, 2 a multiply-add, forward and backward (Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", JMLR 24, 2023, app. B).

Of the bytes: weights W are read by forward and by backward, gradients, as large, are written,
activations A that autograd keeps are written and read; an update reads W, gradients and the two
moments of AdamW, and writes W and the moments: 3 W + 2 A + 7 W / accumulation_steps.

What a device can do is measured. A rate is kept for the day on which it was measured, so that all
notebooks of a day agree. It is the rate of the fastest block of calls: whatever else runs on the
machine only makes a block slower.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from labkit import quotas
from labkit.bench import formats
from labkit.bench.data import IMAGE_CLASSES
from labkit.bench.formats import DTYPES
from labkit.bench.models import PATCH
from labkit.instruments import machine
from labkit.process import folders
from labkit.spec import Job
from labkit.stamps.events import private
from labkit.stamps.folder_rights import text_of

if TYPE_CHECKING:
    from labkit.bench.stopwatch import Bench

FP32_BYTES = 4
ADAM = 2  # numbers of state for each weight: the two moments
KEPT_IN_LAYER = 14  # numbers for each of a token's: counted; fused attention keeps no scores
SECONDS = 0.5  # of timing for each rate
# The size of an array in last-level caches, and never smaller than 1 GiB: a large CPU has several
# such caches. A GPU's L2 does not drop what was used longest ago, so that twice its size would
# still find a part there (Mei and Chu, IEEE TPDS 28(1), 2017)
TIMES_CACHE = 4
LEAST_BYTES = 2**30
SIDE = 8192  # of square matrices on a GPU; a CPU takes as long for smaller ones
SIDE_ON_CPU = 1024


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
        "roof": kept_rates(device),
    }


# -- what the device can do --------------------------------------------------------------------


def todays_rate(bench: Bench, of: str) -> dict[str, object]:
    """Return the rate of memory ("bandwidth", byte/s) or of products in a format (FLOP/s).

    One that was measured today is returned as it was kept.
    """
    path = _file_of(bench.device)
    is_of_today = path.exists() and date.fromtimestamp(path.stat().st_mtime) == date.today()
    known = kept_rates(bench.device) if is_of_today else {}
    if of not in known:
        known[of] = memory_rate(bench) if of == "bandwidth" else product_rate(bench, of)
        part = path.with_suffix(f".{os.getpid()}")  # another run may be writing the same
        with open(part, "w", opener=private) as file:
            json.dump(known, file)
        part.replace(path)
    return {"per_s": known[of]}


def memory_rate(bench: Bench) -> float:
    """Return byte/s of an array that is scaled in place: each number is read once, written once.

    A copy would read its target too before a CPU overwrites it, which nobody counts.
    """
    size = max(LEAST_BYTES, TIMES_CACHE * machine.cache_bytes(bench.device))
    array = torch.ones(size // 4, device=bench.device)
    return fastest(bench, lambda: array.mul_(0.9999), 2 * array.nbytes)


def product_rate(bench: Bench, name: str) -> float:
    """Return FLOP/s of products of large square matrices in a format."""
    if why := formats.why_not(name, bench.device):
        bench.skip(why)
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    side = SIDE_ON_CPU if bench.device.type == "cpu" else SIDE
    squares = torch.randn(3, side, side, device=bench.device)
    left, right, out = squares.to(DTYPES.get(name, torch.float32))
    return fastest(bench, lambda: torch.mm(left, right, out=out), 2 * side**3)


def fastest(bench: Bench, work: Callable[[], object], amount: float) -> float:
    """Return how much of `amount` a second `work` does in its fastest block of calls."""
    bench.time(work, seconds=SECONDS)
    return amount / min(bench.rows[-1]["seconds"])


# -- what was measured, in a file for each device, number of threads and version of torch ----------


def kept_rates(device: torch.device) -> dict[str, float]:
    """Return {format: FLOP/s, "bandwidth": byte/s} as last measured here."""
    return json.loads(text_of(_file_of(device)) or "{}")


def _file_of(device: torch.device) -> Path:
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{quotas.cpu_name()} {device.type} {torch.get_num_threads()} threads"
    return folders.part("roofs") / f"{name} torch {torch.__version__}.json".replace("/", " ")
