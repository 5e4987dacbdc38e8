"""What is iterated in place of a loader."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Takes the place of `loader`, which answers what else is asked of it."""

    def __init__(self, loader: Any):
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:  # copying, pickling
            raise AttributeError(name)
        return getattr(self.loader, name)


def check_iterable(loader: object, by: str) -> None:
    """Raise TypeError where a loader cannot be iterated; `by` is what it was given to."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        kind = type(loader).__name__
        raise TypeError(f"{by}({kind}): give it an iterable of batches, such as a DataLoader.")
