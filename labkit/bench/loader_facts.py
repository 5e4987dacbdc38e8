"""What can be read off somebody else's loader and batches, without running any of their code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

READ = ("num_workers", "batch_size", "pin_memory", "prefetch_factor", "persistent_workers")


def knobs_of(loader: Any) -> dict[str, int | bool]:
    """Return the settings of a torch DataLoader under their own names; {} of anything else."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(loader, data.DataLoader):
        return {}
    knobs = {name: getattr(loader, name, None) for name in READ}
    if knobs["batch_size"] is None:  # where a batch sampler was given
        knobs["batch_size"] = getattr(loader.batch_sampler, "batch_size", None)
    return {name: value for name, value in knobs.items() if isinstance(value, (bool, int))}


def length_of(loader: Any) -> int | None:
    """Return how many batches a pass will have; None where the loader cannot tell."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def counter_for(batch: Any, batch_size: int | None) -> Callable[[Any], int] | None:
    """Return what counts the samples of batches like `batch`; None where that cannot be told.

    They are the length of the first array or tensor in it, however deep in tuples and mappings;
    or, where it is a list of so many samples as the loader's batch size, the list's own length.
    """
    if isinstance(batch, (str, bytes)):
        return None
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return (lambda batch: batch.shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        for key in batch:
            if inner := counter_for(batch[key], batch_size):
                return lambda batch: inner(batch[key])
        return None
    if not isinstance(batch, (list, tuple)):
        return None
    if len(batch) == batch_size:
        return len
    for place, item in enumerate(batch):
        if inner := counter_for(item, batch_size):
            return lambda batch: inner(batch[place])
    return len if batch and isinstance(batch, list) else None
