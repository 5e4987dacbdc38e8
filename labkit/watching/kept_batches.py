"""Batches that are kept to be handed out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from labkit.bench.batch_contents import leaves
from labkit.bench.stack import is_a

if TYPE_CHECKING:
    import torch


class Kept:
    """A batch that is kept, to be handed out more than once."""

    def __init__(self, batch: object):
        self.batch = batch
        tensors = [part for part in leaves(batch) if is_a(part, "torch", "Tensor")]
        self.tensors = cast("list[torch.Tensor]", tensors)
        self.versions = [each._version for each in self.tensors]
        self.bytes = sum(each.nbytes for each in self.tensors)

    def is_changed(self) -> bool:
        """Whether one of its tensors has been changed in place."""
        return self.versions != [each._version for each in self.tensors]


def copied(batch: object) -> object:
    """Return a batch with the same tensors in containers of its own, which a loop may empty.

    A container of a user's own class stays the one that is kept.
    """
    if type(batch) is dict:
        return {name: copied(part) for name, part in dict.items(batch)}
    if type(batch) in (list, tuple):
        return cast(type[list], type(batch))(map(copied, cast(list, batch)))
    return batch
