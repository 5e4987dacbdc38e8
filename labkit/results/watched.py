"""What is known of a loop that is not ours: the spec and the clock of a run made by `lk.watch`."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.spec import KNOBS

BODY_NOTE = (
    "A watched loop: busy is the whole loop body (copies, logging and all), since only the loader "
    "was looked at; copies and gaps inside the body do not show here."
)


class Watched:
    """Stands where a run has its Pipeline: the knobs read off the user's loader, None for others.

    Nothing else is claimed, and nothing can be run again from it.
    """

    def __init__(self, loader: str, knobs: dict[str, Any]):
        """`loader` is the name of its type; `knobs` are the settings that it shows."""
        self.loader = str(loader)[:80]
        plain = {n: v for n, v in knobs.items() if n in KNOBS and isinstance(v, (bool, int))}
        self.__dict__ |= dict.fromkeys(KNOBS) | plain

    def to_dict(self) -> dict[str, Any]:
        """Every knob of a Pipeline; None where this loop's value is not known."""
        return {name: getattr(self, name) for name in KNOBS}

    def changed(self) -> dict[str, Any]:
        """What is known, the loader's type first."""
        known = {name: value for name, value in self.to_dict().items() if value is not None}
        return {"watched": self.loader, **known}

    def but(self, **changes: Any) -> Any:
        """Raise ValueError: labkit holds neither the data nor the model of a watched loop."""
        raise ValueError(
            "this run was watched, not made by labkit: change your own loader and watch it again."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watched) and self.changed() == other.changed()

    __hash__ = None

    def __repr__(self) -> str:
        return f"Watched({', '.join(f'{n}={v!r}' for n, v in self.changed().items())})"


def pauses(stamps_ns: np.ndarray, epochs: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return what lay between the passes over a watched loader, for `without`.

    Validation, checkpoints: the watch did not see them, so no statistic may count them as idle.

    Args:
        stamps_ns: (steps, 6) as `Run.stamps`, ns since the run's first batch was asked for.
        epochs: The number of each pass's first step.

    Returns:
        Moments (2 n,), ns: start and end of each pause; and the pauses' length up to each.
    """
    first = np.array(sorted({i for i in epochs if 0 < i < len(stamps_ns)}), dtype=np.int64)
    start = stamps_ns[first - 1, 5] if len(first) else first
    end = np.maximum(start, stamps_ns[first, 0]) if len(first) else first
    after = np.cumsum(end - start)
    before = np.concatenate([[0], after[:-1]]) if len(after) else after
    return np.column_stack([start, end]).ravel(), np.column_stack([before, after]).ravel()


def without(moment_ns: Any, gaps: tuple[np.ndarray, np.ndarray]) -> Any:
    """Return the moment (a number or an array, ns) on a clock that stands still in the pauses."""
    moments, gone = gaps
    return moment_ns - np.interp(moment_ns, moments, gone) if len(moments) else moment_ns
