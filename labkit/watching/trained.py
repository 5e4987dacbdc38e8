"""What a watched loop trains: where, and in which number format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.instruments.batch_contents import dtype_of_most
from labkit.watching.device_in_use import device_of

if TYPE_CHECKING:
    import torch


class Trained:
    """The weights that a loop trains."""

    def __init__(self):
        self.device: torch.device | None = None  # that the weights are on
        self.dtype: str | None = None  # the number format of the weights
        self.may_fuse: bool | None = None  # of their optimizer, as `may_fuse()` says
        self.model: Any = None  # the torch.nn.Module, where one was given

    def note(self, weights: list[torch.Tensor]) -> None:
        """Note where some weights are, and what most of their numbers are."""
        self.device = device_of(weights) or self.device
        self.dtype = dtype_of_most(weights)
