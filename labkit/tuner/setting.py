"""A loader's settings as one value: what is searched, and what is cheap among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (1, 2, 4, 8)  # batches per worker; PyTorch's default is 2
PYTORCH_PREFETCH = 2


@dataclass(frozen=True)
class Setting:
    """The arguments of a DataLoader that are tuned, under their own names."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int = 16

    @classmethod
    def of(cls, knobs: dict[str, Any]) -> Setting:
        """Make one from {knob: value}; with workers, prefetch_factor becomes PyTorch's default."""
        names = cls.__dataclass_fields__
        made = cls(**{name: value for name, value in knobs.items() if name in names})
        if made.num_workers and made.prefetch_factor is None:
            made = replace(made, prefetch_factor=PYTORCH_PREFETCH)
        return made

    def to_dict(self) -> dict[str, Any]:
        """The arguments: `DataLoader(dataset, **setting.to_dict())`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def but(self, **changes: Any) -> Setting:
        """Return a changed copy; without workers, what needs them is dropped."""
        made = replace(self, **changes)
        if not made.num_workers:
            return replace(made, prefetch_factor=None, persistent_workers=False)
        return made

    @property
    def in_flight(self) -> int:
        """Batches that may wait in the loader's queues."""
        return self.num_workers * (self.prefetch_factor or 0)

    @property
    def cost(self) -> tuple[int, int, int]:
        """What makes one setting cheaper than another: workers, then samples that wait in RAM."""
        return self.num_workers, self.in_flight * self.batch_size, int(self.pin_memory)

    def __str__(self) -> str:
        if not self.num_workers:
            text = "no workers"
        else:
            workers = "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"
            text = f"{workers}, prefetch {self.prefetch_factor}"
        return text + (", pinned" if self.pin_memory else "")


def space(baseline: Setting, max_workers: int, batch_sizes: Iterable[int]) -> list[Setting]:
    """Return what may be tried: the baseline's other settings with other workers and prefetch."""
    workers = [count for count in WORKERS if count <= max_workers]
    made = {}
    for size in batch_sizes:
        for count in workers:
            for depth in PREFETCH if count else (None,):
                setting = baseline.but(num_workers=count, prefetch_factor=depth, batch_size=size)
                made[setting] = None
    return sorted(made, key=lambda setting: (setting.batch_size, setting.cost))
