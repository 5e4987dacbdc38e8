"""What `lk.measure` is asked for, and what the bench adds to each row of its table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.knobs import check_names
from labkit.orders import RowsAsked
from labkit.spec import KNOBS

TIMED = ("ms", "iqr_ms", "noisy", "tflops", "gib_s", "error")  # columns that the bench adds
NOISY = 0.10  # IQR over median above which a measurement is noisy, as in torch.utils.benchmark


@dataclass(frozen=True)
class Grid:
    """A function to measure, and the values of its arguments: every combination is a row.

    Raises ValueError where a value is missing, is not the function's, or where there is none.
    """

    name: str  # the function's
    arguments: tuple[str, ...]  # all that it takes, beside the bench
    needed: tuple[str, ...]  # those without a default
    values: Mapping[str, list[object]]
    device: str = "auto"  # as the knob of a Pipeline

    def __post_init__(self) -> None:
        KNOBS["device"].check(self.device)
        check_names(self.values, self.arguments, f"argument of {self.name}:")
        missing = [name for name in self.needed if name not in self.values]
        if missing:
            give = ", ".join(f"{name}=[...]" for name in missing)
            raise ValueError(f"{self.name} takes {', '.join(missing)} too: give {give}.")
        for name, values in self.values.items():
            if not values:
                raise ValueError(f"{name}=[] has no value: there is nothing to measure.")

    @property
    def points(self) -> list[dict[str, object]]:
        """Every combination, the last argument changing fastest."""
        combinations = itertools.product(*self.values.values())
        return [dict(zip(self.values, values, strict=True)) for values in combinations]

    def to_spec(self) -> RowsAsked:
        """Return what the log's first event says of it."""
        return {"measure": self.name, "points": self.points, "pipeline": {"device": self.device}}
