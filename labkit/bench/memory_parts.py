"""What fills the memory in a training step, part by part, measured at the points of a real step.

On a CUDA device the caching allocator counts: what is allocated before and after each point. A
CPU's allocator keeps no such book, so there the tensors themselves are counted: every storage once,
those that autograd keeps for the backward pass through its saved-tensor hooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from labkit.bench.data import CLASSES
from labkit.bench.loop import Trainer
from labkit.bench.model_size import noise_batch

HOW = {
    "cuda": "counted by the CUDA caching allocator at the points of a step",
    "other": "counted from the tensors themselves (every storage once; saved-tensor hooks)",
}


def measure_step(job: Any, device: torch.device) -> dict[str, Any]:
    """Train three steps of `job` and return the bytes of each part, with the counts of the model.

    Keys: `weights_bytes` (parameters and buffers), `gradients_bytes`, `optimizer_bytes`,
    `activations_bytes` (kept between forward and backward, the batch as floats among them),
    `peak_bytes` (of a whole step; None where nothing counts it), `how`, and the model's counts.
    """
    parts = (_by_allocator if device.type == "cuda" else _by_tensors)(job, device)
    return parts | {"how": HOW.get(device.type, HOW["other"])}


def _by_tensors(job: Any, device: torch.device) -> dict[str, Any]:
    trainer = Trainer(job, device)
    batch = trainer.to_device(*noise_batch(job))
    model = trainer.model
    with KeptForBackward(own_storages(model)) as kept:
        trainer.compute(*batch, update=False)
    gradients = storages(p.grad for p in model.parameters() if p.grad is not None)
    trainer.compute(*batch, update=True)
    state = [value for kept_of in trainer.optimizer.state.values() for value in kept_of.values()]
    return counts_of(model, job) | {
        "weights_bytes": sum(own_storages(model).values()),
        "gradients_bytes": sum(gradients.values()),
        "optimizer_bytes": sum(storages(filter(torch.is_tensor, state)).values()),
        "activations_bytes": kept.bytes,
        "peak_bytes": None,  # nothing counts a CPU's temporaries
    }


def _by_allocator(job: Any, device: torch.device) -> dict[str, Any]:
    _fill_workspaces(device)

    def allocated() -> int:
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)

    at: dict[str, int] = {"start": allocated()}
    trainer = Trainer(job, device)
    at["model"] = allocated()
    batch = trainer.to_device(*noise_batch(job))
    at["batch"] = allocated()
    hook = trainer.model.register_forward_hook(lambda *_: at.update(forward=allocated()))
    trainer.compute(*batch, update=False)
    hook.remove()
    at["backward"] = allocated()
    trainer.compute(*batch, update=True)
    at["update"] = allocated()  # the gradients are gone again: set_to_none
    torch.cuda.reset_peak_memory_stats(device)
    trainer.compute(*batch, update=True)
    torch.cuda.synchronize(device)
    return counts_of(trainer.model, job) | {
        "weights_bytes": at["model"] - at["start"],
        "gradients_bytes": at["backward"] - at["batch"],
        "optimizer_bytes": at["update"] - at["batch"],
        "activations_bytes": at["forward"] - at["batch"],
        "peak_bytes": torch.cuda.max_memory_allocated(device) - at["start"],
    }


def _fill_workspaces(device: torch.device) -> None:
    """Let cuBLAS allocate what it keeps, for the forward's and the backward's thread."""
    layer = torch.nn.Linear(64, 64).to(device)
    layer(torch.ones(64, 64, device=device, requires_grad=True)).sum().backward()


class KeptForBackward:
    """Counts what autograd keeps between forward and backward: every storage once.

    Storages in `without` (the model's own) are no activations. `bytes` is the sum.
    """

    def __init__(self, without: dict[int, int]):
        self.without, self.kept = without, {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.kept |= storages([tensor])  # alive until the backward pass: no address comes twice
        return tensor

    @property
    def bytes(self) -> int:
        """Bytes kept, the model's own storages left out."""
        return sum(size for place, size in self.kept.items() if place not in self.without)

    def __enter__(self) -> KeptForBackward:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return {address: bytes} of the storages behind `tensors`: views of one count once."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def own_storages(model: torch.nn.Module) -> dict[int, int]:
    """Return {address: bytes} of a model's parameters and buffers."""
    return storages([*model.parameters(), *model.buffers()])


def counts_of(model: torch.nn.Module, job: Any) -> dict[str, Any]:
    """Return what `experiments.memory_estimate` predicts from: counts, no measured memory."""
    return {
        "model": job.model, "width": job.width, "depth": job.depth, "image_px": job.image_px,
        "classes": CLASSES, "batch_size": job.batch_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_tensors": sum(1 for _ in model.parameters()),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
    }  # fmt: skip
