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
from torch.utils._pytree import tree_leaves, tree_map

from labkit.bench import formats, machine, model_size, peaks
from labkit.bench.formats import DTYPES, FORMATS
from labkit.bench.loop import Trainer
from labkit.bench.text import Text
from labkit.process import folders
from labkit.process.events import EventLog

COUNTED = (2, 4)  # samples: what a batch of any size takes lies on a line through these
WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel")
HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # of the whole model
ADAM = 2  # numbers of state for each weight: the two moments


class Yes(TorchDispatchMode):
    """Answers what a model asks of its data, which is not there, with 1: as of a full mask."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def fused_attention(kept: dict[int, int]) -> Iterator[None]:
    """Let attention keep what its fused kernels do, and no matrix of scores, in `kept`."""
    plain, itself = functional.scaled_dot_product_attention, lambda tensor: tensor

    def fused(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(itself, itself):
            out = plain(*args, **kwargs)
        kept.update(storages(filter(torch.is_tensor, args[:3])))
        kept[-1 - len(kept)] = 4 * out.numel() // out.shape[-1]  # a logsumexp for each row
        return out  # which the product that follows keeps

    functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


def count(model: torch.nn.Module, train: Callable[[Any], Any]) -> dict[str, int]:
    """Count what `train(model)`, a forward and a backward pass, takes on a copy without numbers."""
    from torch.utils.flop_counter import FlopCounterMode  # a tenth of a second, for Triton

    model = unwrapped(model)
    empty = {id(p): torch.nn.Parameter(_empty(p), p.requires_grad) for p in model.parameters()}
    empty |= {id(b): _empty(b) for b in model.buffers()}
    # a recorder's hooks, with all they hold
    empty |= {id(getattr(model, name)): OrderedDict() for name in HOOKS}
    meta = copy.deepcopy(model, empty)  # what is in there already is not copied
    alone, counter = torch.random.fork_rng([]), FlopCounterMode(display=False)
    with alone, Yes(), counter, kept_for_backward(meta) as kept, fused_attention(kept):
        train(meta)
    by_operator = counter.get_flop_counts().get("Global", {})
    convolutions = sum(n for operator, n in by_operator.items() if "convolution" in str(operator))
    return {
        "flops": counter.get_total_flops(),
        "convolution_flops": convolutions,
        "activations": sum(kept.values()),
        "weights": sum(p.nbytes for p in meta.parameters()),
        "trained": sum(p.nbytes for p in meta.parameters() if p.requires_grad),
        "parameters": sum(p.numel() for p in meta.parameters()),
    }


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside what compiles it, or trains it on several devices."""
    while type(model).__name__ in WRAPPERS:
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


def work_of(
    counted: dict[str, int], *, state: int = 0, every: int = 1, half: bool = False
) -> dict[str, int]:
    """Return a step's FLOPs, bytes moved and bytes held from what was `counted`.

    `state`: the optimizer's numbers for each weight; `every`: passes to an update; `half`: whether
    autocast, which the meta device does not do, halves the activations.
    """
    weights, trained = counted["weights"], counted["trained"]
    activations = counted["activations"] // (2 if half else 1)
    update = (2 + 1 + 2 * state) * trained  # weights, gradients, state
    return {
        "flops": counted["flops"],
        "bytes": 2 * weights + trained + 2 * activations + update // every,
        "held_bytes": weights + (1 + state) * trained + activations,
        "parameters": counted["parameters"],
    }


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@contextlib.contextmanager
def kept_for_backward(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Collect {storage: bytes} of what autograd keeps meanwhile, but the model's own storages."""
    own, kept = storages([*model.parameters(), *model.buffers()]), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found = storages([tensor])  # alive until the backward pass: no storage comes twice
        kept.update({place: size for place, size in found.items() if place not in own})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return {storage: bytes} of the storages behind `tensors`: views of one count once."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage.nbytes() for storage in found}


def write_work(trainer: Any, log: EventLog, only_known: bool = False) -> bool:
    """Write the `work` event: what a step takes; return False where it would have to be counted.

    Counting imports the compiler, a second: so it is done when a first run is over. Later ones of
    the same model, with a batch of any size, ask for what is `only_known`. Never ends the run.
    """
    job = trainer.job
    packed = job.batching == "packed"  # attention within documents has a mask
    told = unwrapped(trainer.model), job.image_px, job.context, packed, trainer.device.type
    name = hashlib.sha1(repr((*told, COUNTED, torch.__version__)).encode()).hexdigest()
    place = folders.home() / "work" / f"{name}.json"
    if only_known and not place.exists():
        return False

    def counted() -> tuple:
        if not only_known:
            model_size.keep(place, json.dumps(count_model(trainer)))
        fewer, more, documents = json.loads(place.read_text())
        beyond = (job.batch_size - COUNTED[0]) / (COUNTED[1] - COUNTED[0])
        line = {name: round(n + beyond * (more[name] - n)) for name, n in fewer.items()}
        half = job.precision in DTYPES
        found = work_of(line, state=ADAM, every=job.accumulation_steps, half=half)
        samples = round(documents * job.batch_size)
        return found | {"samples": samples, "precision": job.precision}, trainer.device

    _write_or_why(log, counted)
    return True


def count_model(trainer: Any) -> tuple[dict[str, int], dict[str, int], float]:
    """Count a plain step of `trainer`'s model with few samples and with more; documents in a row.

    What a fault or a slow script adds to the step is not needed, nor are padding and rows of
    several documents: text is counted at the length of the document that an average token is in.
    """
    job = copy.copy(trainer.job)
    shadow = object.__new__(Trainer)  # what a slow script adds to the step stays out
    vars(shadow).update(vars(trainer))
    documents = 1.0
    shadow.scaler = torch.amp.GradScaler(enabled=False)  # the real one would look at the loss
    job.batch_size = 1
    one = model_size.noise_batch(job)
    if job.model == "gpt":
        length, mean = Text(job).typical()
        one, documents = (one[0][:, : length + 1], one[1]), length / mean

    def counted(samples: int) -> dict[str, int]:
        batch = [x.to("meta").expand(samples, *x.shape[1:]).clone() for x in one]

        def train(model: torch.nn.Module) -> None:
            shadow.model = model
            Trainer.compute(shadow, *batch, update=False)

        return count(trainer.model, train)

    fewer, more = map(counted, COUNTED)
    return fewer, more, documents


def _write_or_why(log: EventLog, counted: Callable[[], tuple]) -> None:
    """Write the `work` event with the device's measured peaks, or `no_work` and why."""
    try:
        found, device = counted()
        cache = max(machine.cache_bytes(device).values(), default=0)
        log.write("work", **found, cache_bytes=cache, roof=peaks.kept(device))
    except Exception as error:  # a number is missing; the run is none the worse
        log.write("no_work", why=f"{type(error).__name__}: {str(error)[:300]}")


class FirstCall:
    """Sees the shapes of a user's model's first training call; counts on a copy what it takes."""

    def __init__(self, model: torch.nn.Module):
        self.model, self.given = model, None
        self.hook = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        self.hook.remove()
        with contextlib.suppress(Exception):
            device = next(module.parameters()).device
            cast = torch.is_autocast_enabled(device.type)
            first, dtype = tree_leaves((args, kwargs))[0], next(module.parameters()).dtype
            dtype = torch.get_autocast_dtype(device.type) if cast else dtype
            kind = next(name for name, (known, _) in FORMATS.items() if known is dtype)
            # as they are set now: convolutions and matrix products have a setting each
            kinds = dict.fromkeys(("convolution", "product"), kind)
            if kind == "fp32":
                kinds = {work: formats.fp32_runs_in(work, device) for work in kinds}
            call = tree_map(lambda x: _empty(x) if torch.is_tensor(x) else x, (args, kwargs))
            self.given = call, cast, kinds, device, len(first)

    def write(self, log: EventLog, samples: int | None) -> None:
        """Write the `work` event of a batch of `samples`; None: as many as the call has rows."""
        (args, kwargs), cast, kinds, device, rows = self.given

        def train(model: torch.nn.Module) -> None:
            made = filter(torch.is_tensor, tree_leaves(model(*args, **kwargs)))
            sum(x.sum() for x in made if x.requires_grad).backward()

        def counted() -> tuple:
            took = count(self.model, train)
            most = "convolution" if 2 * took["convolution_flops"] > took["flops"] else "product"
            found = work_of(took, half=cast)
            return found | {"samples": samples or rows, "precision": kinds[most]}, device

        _write_or_why(log, counted)
