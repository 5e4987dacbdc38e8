"""What a training step has to compute and to move, counted on the meta device: nothing is run.

FLOPs are the model's own by `torch.utils.flop_counter`'s formulas (2 a multiply-add), forward and
backward (Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", JMLR 24, 2023, app. B).

Bytes are a lower bound of a step's traffic: weights W read by forward and by backward, gradients G
written, activations A that autograd keeps (input included) written and read; then an update reads
W, G and the optimizer's state S and writes W and S: 2 W + G + 2 A + (2 W + G + 2 S) /
accumulation_steps. W, G and S are the model states of Rajbhandari et al., "ZeRO", SC 2020, 3.1.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.bench import formats, peaks
from labkit.bench.data import noise_batch
from labkit.bench.formats import DTYPES
from labkit.bench.loop import Trainer
from labkit.instruments import machine
from labkit.instruments.kept_files import keep
from labkit.instruments.optional import write_or_why
from labkit.process import folders
from labkit.stamps.events import EventLog
from labkit.stamps.folder_rights import text_of

COUNTED = (2, 4)  # samples: what a batch of any size takes lies on a line through these
WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel")
HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # of the whole model
ADAM = 2  # numbers of state for each weight: the two moments


class ReadsOnes(TorchDispatchMode):
    """Answers 1 where a model reads a number of a meta tensor: as of a full mask."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@contextlib.contextmanager
def fused_attention(kept: dict[int, int]) -> Iterator[None]:
    """Let attention keep what its fused kernels do, and no matrix of scores, in `kept`."""
    plain = functional.scaled_dot_product_attention

    def fused(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged):
            out = plain(*args, **kwargs)
        kept.update(storages(filter(torch.is_tensor, args[:3])))
        kept[-1 - len(kept)] = 4 * out.numel() // out.shape[-1]  # a logsumexp for each row
        return out  # which the product that follows keeps

    functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


def count(model: torch.nn.Module, train: Callable[[torch.nn.Module], None]) -> dict[str, int]:
    """Count what `train(model)`, a forward and a backward pass, takes on a copy without numbers."""
    from torch.utils.flop_counter import FlopCounterMode  # a tenth of a second, for Triton

    model = unwrapped(model)
    stand_ins: dict[int, object] = {}  # by the id of what they stand for in the copy
    for weights in model.parameters():
        stand_ins[id(weights)] = torch.nn.Parameter(without_numbers(weights), weights.requires_grad)
    for buffer in model.buffers():
        stand_ins[id(buffer)] = without_numbers(buffer)
    for name in HOOKS:  # a recorder's hooks, with all they hold
        stand_ins[id(getattr(model, name))] = OrderedDict()
    meta = copy.deepcopy(model, stand_ins)
    alone = torch.random.fork_rng([])
    counter = FlopCounterMode(display=False)
    with alone, ReadsOnes(), counter, kept_for_backward(meta) as kept, fused_attention(kept):
        train(meta)
    convolutions = 0
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        if "convolution" in str(operator):
            convolutions += flops
    parameters = list(meta.parameters())
    return {
        "flops": counter.get_total_flops(),
        "convolution_flops": convolutions,
        "activations": sum(kept.values()),
        "weights": sum(each.nbytes for each in parameters),
        "trained": sum(each.nbytes for each in parameters if each.requires_grad),
        "parameters": sum(each.numel() for each in parameters),
    }


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside what compiles it, or trains it on several devices."""
    while type(model).__name__ in WRAPPERS:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    return model


def work_event(
    counted: dict[str, int],
    samples: int,
    precision: str,
    device: torch.device,
    *,
    states_per_weight: int = 0,
    passes_per_update: int = 1,
    halves_activations: bool = False,
) -> dict[str, object]:
    """Return the `work` event: a step's FLOPs, the bytes it moves and holds; the device's peaks.

    Args:
        counted: What `count` returned for `samples` samples.
        precision: That most of it runs in.
        device: Where it runs.
        states_per_weight: The optimizer's numbers for each weight.
        passes_per_update: Of forward and backward.
        halves_activations: Whether autocast, which the meta device does not do, does so.
    """
    weights = counted["weights"]
    trained = counted["trained"]
    activations = counted["activations"] // (2 if halves_activations else 1)
    update = (2 + 1 + 2 * states_per_weight) * trained  # weights, gradients, state
    return {
        "flops": counted["flops"],
        "bytes": 2 * weights + trained + 2 * activations + update // passes_per_update,
        "held_bytes": weights + (1 + states_per_weight) * trained + activations,
        "parameters": counted["parameters"],
        "samples": samples,
        "precision": precision,
        "cache_bytes": machine.cache_bytes(device),
        "roof": peaks.kept(device),
    }


def without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same shape, strides and number format."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@contextlib.contextmanager
def kept_for_backward(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Collect {storage: bytes} of what autograd keeps meanwhile, but the model's own storages."""
    own = storages([*model.parameters(), *model.buffers()])
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found = storages([tensor])  # alive until the backward pass: no storage comes twice
        kept.update({place: size for place, size in found.items() if place not in own})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, _unchanged):
        yield kept


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return {storage: bytes} of the storages behind `tensors`: views of one count once."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage.nbytes() for storage in found}


def write_work(trainer: Trainer, log: EventLog) -> None:
    """Write the `work` event: what a step takes. Never ends the run.

    Counting imports sympy and the compiler, two seconds: so it is the last thing that a first run
    does, and kept for later ones of the same model, with a batch of any size.
    """
    write_or_why(log, "work", lambda: _work_of(trainer))


def _work_of(trainer: Trainer) -> dict[str, object]:
    """Return the `work` event of a step of `trainer`, counted now or by an earlier run."""
    job = trainer.job
    sizes = (job.image_px, trainer.device.type, COUNTED, torch.__version__)
    name = hashlib.sha1(repr((unwrapped(trainer.model), *sizes)).encode()).hexdigest()
    place = folders.part("work") / f"{name}.json"
    if not text_of(place):
        keep(place, json.dumps(count_plain_step(trainer)))
    fewer, more = json.loads(text_of(place))
    beyond = (job.batch_size - COUNTED[0]) / (COUNTED[1] - COUNTED[0])
    line = {key: round(least + beyond * (more[key] - least)) for key, least in fewer.items()}
    return work_event(
        line,
        job.batch_size,
        formats.computes_in(job.precision, job.model, trainer.device),
        trainer.device,
        states_per_weight=ADAM,
        passes_per_update=job.accumulation_steps,
        halves_activations=job.precision in DTYPES,
    )


def count_plain_step(trainer: Trainer) -> tuple[dict[str, int], dict[str, int]]:
    """Count a plain step of `trainer`'s model with few samples and with more.

    What a slow script adds to the step is not needed: inputs and loss are those of a Trainer.
    """
    job = copy.copy(trainer.job)
    job.batch_size = 1
    one = noise_batch(job)

    def counted(samples: int) -> dict[str, int]:
        images, labels = (part.to("meta").expand(samples, *part.shape[1:]).clone() for part in one)

        def train(model: torch.nn.Module) -> None:
            inputs, targets = Trainer.inputs(trainer, images, labels)
            Trainer.loss(trainer, model(inputs), targets).backward()

        return count(trainer.model, train)

    return counted(COUNTED[0]), counted(COUNTED[1])
