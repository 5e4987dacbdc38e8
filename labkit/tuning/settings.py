"""The arguments of a DataLoader that are searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from labkit.knobs import Setting, Settings
from labkit.results.text import counted
from labkit.spec import LOADER_KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS

DEPTH_WEIGHT = 0.3  # a doubled prefetch_factor changes a run less than doubled workers


@dataclass(frozen=True)
class LoaderSetting:
    """The arguments of a DataLoader that are tuned, under their own names."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int = 16

    @classmethod
    def of(cls, knobs: Mapping[str, Setting]) -> LoaderSetting:
        """Make one from {knob: value}; with workers, prefetch_factor becomes PyTorch's default."""
        return cls().but(**{name: knobs[name] for name in LOADER_KNOBS if name in knobs})

    def to_dict(self) -> Settings:
        """Return the arguments: `DataLoader(dataset, **setting.to_dict())`."""
        return asdict(self)

    def but(self, **changes: Setting) -> LoaderSetting:
        """Return a changed copy; without workers, the arguments that need them are dropped."""
        setting = replace(self, **changes)
        if not setting.num_workers:
            return replace(setting, **WITHOUT_WORKERS)
        return replace(setting, prefetch_factor=setting.prefetch_factor or PYTORCH_PREFETCH)

    @property
    def searched(self) -> Settings:
        """The arguments that a prediction can tell of."""
        return {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor}

    @property
    def in_flight(self) -> int:
        """Batches that may wait in the loader's queues."""
        return self.num_workers * (self.prefetch_factor or 0)

    @property
    def cost(self) -> tuple[int, int, bool]:
        """Sorts settings from cheap to dear: by workers, then by samples that wait in RAM."""
        return self.num_workers, self.in_flight * self.batch_size, self.pin_memory

    def __str__(self) -> str:
        text = "no workers"
        if self.num_workers:
            workers = counted(self.num_workers, "worker")
            text = f"{workers}, prefetch {self.prefetch_factor}"
        return f"{text}, pinned" if self.pin_memory else text


def distance(one: LoaderSetting, other: LoaderSetting) -> float:
    """Return how far two settings are apart, for choosing which run predicts which."""
    workers = math.log2((1 + one.num_workers) / (1 + other.num_workers))
    depth = math.log2((one.prefetch_factor or 1) / (other.prefetch_factor or 1))
    return abs(workers) + DEPTH_WEIGHT * abs(depth)
