"""Batches that are kept to be handed out again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any


class Kept:
    """A batch that is kept, to be handed out more than once."""

    def __init__(self, batch: Any):
        self.batch = batch
        self.tensors = list(_tensors(batch))
        self.versions = [each._version for each in self.tensors]
        self.bytes = sum(each.nbytes for each in self.tensors)

    def is_changed(self) -> bool:
        """Whether one of its tensors has been changed in place."""
        return self.versions != [each._version for each in self.tensors]

    def handed_out(self) -> Any:
        """Return it in containers of its own, from which a loop may take parts away."""
        return copied(self.batch)


def _tensors(batch: Any) -> Iterator[Any]:
    if hasattr(batch, "_version") and hasattr(batch, "nbytes"):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors(part)


def copied(batch: Any) -> Any:
    """Return a batch with the same tensors in containers of its own."""
    if hasattr(batch, "_version"):
        return batch
    if isinstance(batch, dict) and type(batch) is dict:
        return {name: copied(part) for name, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(copied(part) for part in batch)
    return copy.copy(batch)
