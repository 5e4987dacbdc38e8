"""What a watched loop trains: where, in which number format, and with how many FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from labkit.instruments.batch_contents import dtype_of_most
from labkit.watching.device_in_use import device_of

if TYPE_CHECKING:
    import torch

    from labkit.bench.first_call import FirstCallHook


class Trained:
    """The weights that a loop trains, and the first training call of its model."""

    def __init__(self):
        self.device: torch.device | None = None  # that the weights are on
        self.dtype: str | None = None  # the number format of the weights
        self.may_fuse: bool | None = None  # of their optimizer, as `may_fuse()` says
        self.model: object = None  # whose FLOPs are to be counted from the next pass on
        self.call: FirstCallHook | None = None  # until its FLOPs are counted

    def note(self, weights: list[torch.Tensor]) -> None:
        """Note where some weights are, and what most of their numbers are."""
        self.device = device_of(weights) or self.device
        self.dtype = dtype_of_most(weights)

    def count(self, model: object) -> None:
        """Count the FLOPs of a training call of `model` in the next pass, and of no other one.

        Before that it stays as it is: it may yet be copied, scripted or compiled.
        """
        self.forget()
        self.model = model

    def begin(self) -> None:
        """A pass begins: see the next training call of the model that is to be counted."""
        model, self.model = self.model, None
        if model is not None:
            from labkit.bench.first_call import FirstCallHook  # the loop has imported torch by now

            self.call = FirstCallHook(cast("torch.nn.Module", model))

    def forget(self) -> None:
        """Leave the model as it was."""
        if self.call is not None:
            self.call.remove()
