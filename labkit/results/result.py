"""The base of every result: it prints as a table, draws itself, and becomes JSON types."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labkit.results.table import Table
from labkit.wiring import above


def noise(spread: float, what: str = "throughput") -> str:
    """Return what is said of a measurement whose `spread` (IQR over median) is above NOISY."""
    return f"NOISY: {what} varied by {spread:.0%} (IQR/median)"


class Result:
    """The base of everything that comes out: a subclass says what its table holds.

    It prints as that table; `plot` finds its figure under the class's name (`labkit.wiring`).
    """

    def table(self) -> Table:
        """Return what is printed; every subclass has its own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything in it as JSON types: of a dataclass, its fields."""
        return asdict(self)

    def plot(self, **drawing: Any) -> Any:
        """Draw it as a matplotlib Figure; the options are those of its figure."""
        return above(f"{type(self).__name__}.plot")(self, **drawing)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
