"""What `lk.measure` is asked for, and what the bench adds to each row of its table."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType

from labkit.orders import Order
from labkit.spec import KNOBS

TIMED = ("ms", "iqr_ms", "noisy", "tflops", "gib_s", "error")  # columns that the bench adds
NOISY = 0.10  # IQR over median above which a measurement is noisy, as in torch.utils.benchmark


@dataclass(frozen=True)
class Grid:
    """A function to measure, and the values of its arguments: every combination is a row."""

    name: str  # the function's
    values: Mapping[str, list[object]]
    device: str = "auto"  # as the knob of a Pipeline

    @classmethod
    def of(cls, function: Callable[..., object], values: Mapping[str, object], device: str) -> Grid:
        """Make a Grid of lists of values, or single ones.

        Raises ValueError where a value is missing, is not the function's, or where there is none.
        """
        KNOBS["device"].check(device)
        if not isinstance(function, FunctionType):
            raise ValueError(f"{function!r} is not a function: give one that takes (bench, ...).")
        name = function.__name__
        try:
            inspect.signature(function).bind(None, **values)
        except TypeError as error:
            raise ValueError(f"{name}(bench, ...): {error}.") from None
        grid = {}
        for argument, given in values.items():
            grid[argument] = list(given) if isinstance(given, (list, tuple, range)) else [given]
            if not grid[argument]:
                raise ValueError(f"{argument}=[] has no value: there is nothing to measure.")
        return cls(name, grid, device)

    @property
    def points(self) -> list[dict[str, object]]:
        """Every combination, the last argument changing fastest."""
        combinations = itertools.product(*self.values.values())
        return [dict(zip(self.values, values, strict=True)) for values in combinations]

    def to_spec(self) -> Order:
        """Return what the log's first event says of it."""
        return {"measure": self.name, "points": self.points, "pipeline": {"device": self.device}}
