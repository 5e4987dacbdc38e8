"""The settings of somebody's DataLoader, read without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from labkit.spec import LOADER_KNOBS


def knobs_of(loader: object) -> dict[str, int | bool]:
    """Return the settings of a torch DataLoader under their own names; {} of anything else."""
    data = sys.modules.get("torch.utils.data")
    loader = getattr(loader, "fake_l", loader)  # a fastai DataLoader's, for torch's iterators
    if data is None or not isinstance(loader, data.DataLoader):
        return {}
    knobs = {name: getattr(loader, name, None) for name in LOADER_KNOBS}
    if knobs["batch_size"] is None:  # where a batch sampler was given
        knobs["batch_size"] = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return {name: value for name, value in knobs.items() if isinstance(value, (bool, int))}


def in_flight(knobs: Mapping[str, int]) -> int:
    """Return how many batches a loader's workers prepare ahead; 0 where that is not known."""
    return knobs.get("num_workers", 0) * knobs.get("prefetch_factor", 0)
