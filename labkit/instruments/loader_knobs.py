"""The settings of somebody's DataLoader, read without importing torch or asking its class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.instruments.before_calls import attributes_of
from labkit.instruments.stack import is_a
from labkit.spec import LOADER_KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS
from labkit.stamps.interrupts import OwnErrors

LEAST_WARMUP = 3  # steps that the statistics leave out, however few batches are prefetched
# Arguments of a DataLoader that need workers
OF_WORKERS = {*WITHOUT_WORKERS, "multiprocessing_context", "timeout"}


def torch_loader(loader: object) -> Any:
    """Return what torch's iterators are made of: the loader, or the one that a wrapper holds."""
    kept = attributes_of(loader)
    inner = () if "num_workers" in kept else kept.values()
    return next((each for each in inner if is_a(each, "torch.utils.data", "DataLoader")), loader)


def knobs_of(loader: object) -> dict[str, int | bool]:
    """Return the settings of a torch DataLoader under their own names; {} of anything else."""
    loader = torch_loader(loader)
    if not is_a(loader, "torch.utils.data", "DataLoader"):
        return {}
    kept = attributes_of(loader)
    knobs: dict[str, Any] = {name: kept.get(name) for name in LOADER_KNOBS}
    if knobs["batch_size"] is None:  # where a batch sampler was given
        knobs["batch_size"] = attributes_of(kept.get("batch_sampler")).get("batch_size")
    return {name: value for name, value in knobs.items() if type(value) in (int, bool)}


def in_flight(knobs: Mapping[str, Any]) -> int:
    """Return how many batches a loader's workers prepare ahead; 0 without workers.

    Where no prefetch_factor is known it is PyTorch's own.
    """
    return (knobs.get("num_workers") or 0) * (knobs.get("prefetch_factor") or PYTORCH_PREFETCH)


def warmup_steps(knobs: Mapping[str, Any]) -> int:
    """Return how many steps the statistics leave out: those of the batches that are prefetched."""
    return max(LEAST_WARMUP, in_flight(knobs))


def length_of(loader: Any) -> int | None:
    """Return how many batches a loader says that it has; None where it does not know."""
    with OwnErrors():
        return len(loader)
    return None
