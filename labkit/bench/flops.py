"""What a training step has to compute and to move, counted on the meta device: nothing is run.

FLOPs are the model's own by `torch.utils.flop_counter`'s formulas (2 a multiply-add), forward and
backward (Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", JMLR 24, 2023, app. B).

Of the bytes: weights W are read by forward and by backward, gradients, as large, are written,
activations A that autograd keeps are written and read; an update reads W, gradients and the two
moments of AdamW, and writes W and the moments: 3 W + 2 A + 7 W / accumulation_steps.
"""

from __future__ import annotations

import hashlib
import json

import torch
from torch import nn

from labkit.bench import formats, peaks
from labkit.bench.data import IMAGE_CLASSES
from labkit.bench.formats import DTYPES
from labkit.bench.models import MODELS
from labkit.instruments import machine
from labkit.instruments.record_head import write_or_why
from labkit.process import folders
from labkit.spec import Job
from labkit.stamps.events import EventLog
from labkit.stamps.folder_rights import text_of

COUNTED = 2  # samples: of a batch FLOPs and activations are as many times as large
ADAM = 2  # numbers of state for each weight: the two moments


def write_work(job: Job, device: torch.device, log: EventLog) -> None:
    """Write the `work` event: what a step takes. Never ends the run.

    Counting imports sympy and the compiler, two seconds: so it is the last thing that a first run
    does, and kept for later ones of the same model.
    """
    write_or_why(log, "work", lambda: _work_of(job, device))


def _work_of(job: Job, device: torch.device) -> dict[str, object]:
    """Return the `work` event: a step's FLOPs, the bytes it moves and holds; the device's peaks."""
    counted = _counted(job)
    batches = job.batch_size / COUNTED
    weights = counted["weights"]
    # autocast, which the meta device does not do, halves what is kept
    activations = counted["activations"] * batches / (2 if job.precision in DTYPES else 1)
    update = (3 + 2 * ADAM) * weights / job.accumulation_steps
    return {
        "flops": round(counted["flops"] * batches),
        "bytes": round(3 * weights + 2 * activations + update),
        "held_bytes": round((2 + ADAM) * weights + activations),
        "samples": job.batch_size,
        "precision": formats.computes_in(job.precision, job.model, device),
        "cache_bytes": machine.cache_bytes(device),
        "roof": peaks.kept(device),
    }


def _counted(job: Job) -> dict[str, int]:
    """Return what `count` does, by an earlier run where there was one."""
    model = (job.model, job.width, job.depth, job.image_px, torch.__version__)
    place = folders.part("work") / f"{hashlib.sha1(repr(model).encode()).hexdigest()}.json"
    if not text_of(place):
        peaks.keep(place, json.dumps(count(job)))
    return json.loads(text_of(place))


def count(job: Job) -> dict[str, int]:
    """Count what forward and backward of the job's model take for `COUNTED` samples."""
    from torch.utils.flop_counter import FlopCounterMode  # a tenth of a second, for Triton

    kept: dict[int, int] = {}  # {storage: bytes}; alive until the backward pass

    def keep_storage(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False)
    with torch.device("meta"):
        model = MODELS[job.model](job.width, job.depth, IMAGE_CLASSES, job.image_px)
        images = torch.empty(COUNTED, 3, job.image_px, job.image_px)
        labels = torch.zeros(COUNTED, dtype=torch.int64)
        with counter, torch.autograd.graph.saved_tensors_hooks(keep_storage, lambda tensor: tensor):
            nn.functional.cross_entropy(model(images), labels).backward()
    weights = list(model.parameters())
    for tensor in (*weights, *model.buffers()):
        kept.pop(tensor.untyped_storage()._cdata, None)
    return {
        "flops": counter.get_total_flops(),
        "activations": sum(kept.values()),
        "weights": sum(each.nbytes for each in weights),
    }
