"""Batches that are kept to be handed out again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, cast

from labkit.bench.batch_contents import leaves

if TYPE_CHECKING:
    import torch


class Kept:
    """A batch that is kept, to be handed out more than once."""

    def __init__(self, batch: object):
        self.batch = batch
        self.tensors: list[torch.Tensor] = []
        for part in leaves(batch):
            if hasattr(part, "_version") and hasattr(part, "nbytes"):
                self.tensors.append(cast("torch.Tensor", part))
        self.versions = [each._version for each in self.tensors]
        self.bytes = sum(each.nbytes for each in self.tensors)

    def is_changed(self) -> bool:
        """Whether one of its tensors has been changed in place."""
        return self.versions != [each._version for each in self.tensors]


def copied(batch: object) -> object:
    """Return a batch with the same tensors in containers of its own, which a loop may empty."""
    if hasattr(batch, "_version"):
        return batch
    if isinstance(batch, dict) and type(batch) is dict:
        return {name: copied(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)) and type(batch) in (list, tuple):
        return type(batch)(map(copied, batch))
    return copy.copy(batch)
