"""The arguments of a DataLoader that are searched: knobs, as a dict."""

from __future__ import annotations

from labkit.knobs import Settings
from labkit.spec import KNOBS, LOADER_KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS


def of_loader(knobs: Settings) -> Settings:
    """Return a DataLoader's arguments among knobs, those that are missing at their defaults.

    Without workers, the arguments that need them are dropped.
    """
    found = {name: knobs.get(name, KNOBS[name].default) for name in LOADER_KNOBS}
    if not found["num_workers"]:
        return found | WITHOUT_WORKERS
    return found | {"prefetch_factor": found["prefetch_factor"] or PYTORCH_PREFETCH}


def in_flight(knobs: Settings) -> int:
    """Return how many batches may wait in the loader's queues."""
    return knobs["num_workers"] * (knobs["prefetch_factor"] or 0)


def cost(knobs: Settings) -> tuple[int, int, bool]:
    """Sort settings from cheap to dear: by workers, then by samples that wait in RAM."""
    return knobs["num_workers"], in_flight(knobs) * knobs["batch_size"], knobs["pin_memory"]
