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
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from labkit.bench import formats, machine, peaks
from labkit.bench.data import noise_batch
from labkit.bench.formats import DTYPES, NUMBER_FORMATS
from labkit.bench.kept_files import keep
from labkit.bench.loop import Trainer, Trains
from labkit.bench.optional import write_or_why
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
        stand_ins[id(weights)] = torch.nn.Parameter(_empty(weights), weights.requires_grad)
    for buffer in model.buffers():
        stand_ins[id(buffer)] = _empty(buffer)
    for name in HOOKS:  # a recorder's hooks, with all they hold
        stand_ins[id(getattr(model, name))] = OrderedDict()
    meta = copy.deepcopy(model, stand_ins)
    alone = torch.random.fork_rng([])
    counter = FlopCounterMode(display=False)
    with alone, Yes(), counter, kept_for_backward(meta) as kept, fused_attention(kept):
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
    state: int = 0,
    every: int = 1,
    half: bool = False,
) -> dict[str, object]:
    """Return the `work` event: a step's FLOPs, the bytes it moves and holds; the device's peaks.

    Args:
        counted: What `count` returned, of so many `samples`.
        precision: That most of it runs in.
        device: Where it runs.
        state: The optimizer's numbers for each weight.
        every: Passes to an update.
        half: Whether autocast, which the meta device does not do, halves the activations.
    """
    weights = counted["weights"]
    trained = counted["trained"]
    activations = counted["activations"] // (2 if half else 1)
    update = (2 + 1 + 2 * state) * trained  # weights, gradients, state
    return {
        "flops": counted["flops"],
        "bytes": 2 * weights + trained + 2 * activations + update // every,
        "held_bytes": weights + (1 + state) * trained + activations,
        "parameters": counted["parameters"],
        "samples": samples,
        "precision": precision,
        "cache_bytes": machine.cache_bytes(device),
        "roof": peaks.kept(device),
    }


def _without_numbers(value: object) -> object:
    return _empty(value) if isinstance(value, torch.Tensor) else value


def _empty(tensor: torch.Tensor) -> torch.Tensor:
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


def write_work(trainer: Trains, log: EventLog, only_known: bool = False) -> bool:
    """Write the `work` event: what a step takes; return False where it would have to be counted.

    Counting imports the compiler, a second: so it is done when a first run is over. Later ones of
    the same model, with a batch of any size, ask for what is `only_known`. Never ends the run.
    """
    job = trainer.job
    sizes = (job.image_px, trainer.device.type, COUNTED, torch.__version__)
    name = hashlib.sha1(repr((unwrapped(trainer.model), *sizes)).encode()).hexdigest()
    place = folders.home() / "work" / f"{name}.json"
    if only_known and not place.exists():
        return False

    def counted() -> dict[str, object]:
        if not only_known:
            keep(place, json.dumps(count_model(trainer)))
        fewer, more = json.loads(place.read_text())
        beyond = (job.batch_size - COUNTED[0]) / (COUNTED[1] - COUNTED[0])
        line = {}
        for name, least in fewer.items():
            line[name] = round(least + beyond * (more[name] - least))
        return work_event(
            line,
            job.batch_size,
            job.precision,
            trainer.device,
            state=ADAM,
            every=job.accumulation_steps,
            half=job.precision in DTYPES,
        )

    write_or_why(log, "work", counted)
    return True


def count_model(trainer: Trains) -> tuple[dict[str, int], dict[str, int]]:
    """Count a plain step of `trainer`'s model with few samples and with more.

    What a fault or a slow script adds to the step is not needed.
    """
    job = copy.copy(trainer.job)
    shadow = object.__new__(Trainer)  # what a slow script adds to the step stays out
    vars(shadow).update(vars(trainer))
    shadow.scaler = torch.amp.GradScaler(enabled=False)  # the real one would look at the loss
    job.batch_size = 1
    one = noise_batch(job)

    def counted(samples: int) -> dict[str, int]:
        images, labels = (part.to("meta").expand(samples, *part.shape[1:]).clone() for part in one)

        def train(model: torch.nn.Module) -> None:
            shadow.model = model
            Trainer.compute(shadow, images, labels, update=False)

        return count(trainer.model, train)

    return counted(COUNTED[0]), counted(COUNTED[1])


class FirstArguments(NamedTuple):
    """The arguments of a model's first training call, tensors without their numbers."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    autocasts: bool
    formats: dict[str, str]  # {"convolution" or "product": the number format it runs in}
    device: torch.device
    rows: int  # of the first argument


def _formats_of(weights: torch.Tensor) -> tuple[bool, dict[str, str]]:
    """Return whether autocast is on, and the format of each kind of work with these weights."""
    device = weights.device
    autocasts = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocasts else weights.dtype
    kind = next(name for name, known in NUMBER_FORMATS.items() if known is dtype)
    # as they are set now: convolutions and matrix products have a setting each
    kinds = {"convolution": kind, "product": kind}
    if kind == "fp32":
        kinds = {work: formats.fp32_runs_in(work, device) for work in kinds}
    return autocasts, kinds


def _is_compiled(part: torch.nn.Module) -> bool:
    return getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod")


class FirstCall:
    """Sees the shapes of a user's model's first training call; counts on a copy what it takes.

    Nothing is hooked in a model or a part that shows that Dynamo compiles it: it would trace the
    hooks, and compile anew without them. A model compiled in place (`model.compile()`), or within
    accelerate's autocast, is not counted.
    """

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.given: FirstArguments | None = None
        self.knows_formats = False
        self.hooks: list[RemovableHandle] = []
        compiled = any(map(_is_compiled, model.modules()))
        wrapped = hasattr(model, "_original_forward")  # by accelerate, with autocast within
        if getattr(model, "_compiled_call_impl", None) is not None or (compiled and wrapped):
            return
        with contextlib.suppress(RuntimeError):  # a scripted model takes no hook
            self.hooks.append(model.register_forward_pre_hook(self._look, with_kwargs=True))
        parts = list(model.modules())[1:]
        if compiled:
            return
        # accelerate switches autocast on within the model's forward: there is where to look
        weighty = (part for part in parts if next(part.parameters(recurse=False), None) is not None)
        first = next(weighty, None)
        if first is not None:
            with contextlib.suppress(RuntimeError):  # a scripted part takes no hook
                self.hooks.append(first.register_forward_pre_hook(self._look_inside))

    def remove(self) -> None:
        """Leave the model as it was."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _look(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if torch.compiler.is_compiling():  # the hook would become a part of what is compiled
            return
        if self.given is not None or not (module.training and torch.is_grad_enabled()):
            return
        with contextlib.suppress(Exception):
            weights = next(module.parameters())
            autocasts, kinds = _formats_of(weights)
            rows = len(tree_leaves((args, kwargs))[0])
            args, kwargs = tree_map(_without_numbers, (args, kwargs))
            self.given = FirstArguments(args, kwargs, autocasts, kinds, weights.device, rows)

    def _look_inside(self, part: torch.nn.Module, _args: tuple[object, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        if self.given is None or self.knows_formats:  # not in a training call yet, or no more
            return
        self.knows_formats = True
        with contextlib.suppress(Exception):
            autocasts, kinds = _formats_of(next(part.parameters()))
            self.given = self.given._replace(autocasts=autocasts, formats=kinds)

    def write(self, log: EventLog, samples: int | None) -> None:
        """Write the `work` event of a batch of `samples`; None: as many as the call has rows."""
        self.remove()
        given = self.given
        if given is None:
            return

        def train(model: torch.nn.Module) -> None:
            total = torch.zeros((), device="meta")
            for made in tree_leaves(model(*given.args, **given.kwargs)):
                if torch.is_tensor(made) and made.requires_grad:
                    total = total + made.sum()
            total.backward()

        def counted() -> dict[str, object]:
            if isinstance(self.model, torch.nn.DataParallel) and len(self.model.device_ids) > 1:
                cards = len(self.model.device_ids)
                raise RuntimeError(f"DataParallel computes on {cards} cards; a peak is that of one")
            took = count(self.model, train)
            most = "convolution" if 2 * took["convolution_flops"] > took["flops"] else "product"
            rows = samples or given.rows
            return work_event(took, rows, given.formats[most], given.device, half=given.autocasts)

        write_or_why(log, "work", counted)
