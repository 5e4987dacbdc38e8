"""What is in a batch of somebody else's loop: samples, bytes, a number format, padding.

Nothing here imports torch, runs their code, or waits for a device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

LEAST_TOKENS = 8  # in a row of text

Batch: TypeAlias = Any  # whatever a collate function makes

Keys = tuple[object, ...]
"""What leads to a part of a batch: indices of lists and tuples, keys of mappings."""


def leaves(batch: object) -> Iterator[object]:
    """Yield what is in a batch, however deep in lists, tuples and mappings."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from leaves(part)
    else:
        yield batch


def counter_for(batch: object, batch_size: int | None) -> Callable[[Any], int] | None:
    """Return what counts the samples of batches like this: its first array's or list's length.

    A batch of another kind, as a user's loop may meet, is counted by its own, or as 0.
    """
    known = _counter_like(batch, batch_size)
    if known is None:
        return None

    def count(batch: Batch) -> int:
        try:
            return known(batch)
        except Exception:
            own = _counter_like(batch, batch_size)
            return own(batch) if own else 0

    return count


def _counter_like(batch: object, batch_size: int | None) -> Callable[[Any], int] | None:
    """Return what counts the samples of batches of just this kind; None where they are unknown."""
    if (shape := getattr(batch, "shape", None)) is not None:
        return (lambda batch: batch.shape[0]) if len(shape) else None
    if not isinstance(batch, (list, tuple, Mapping)):
        return None
    if len(batch) == batch_size and not isinstance(batch, Mapping):
        return len
    parts = list(batch.items() if isinstance(batch, Mapping) else enumerate(batch))
    for place, part in parts:
        if inner := _counter_like(part, batch_size):
            return lambda batch: inner(batch[place])
    return len if parts and isinstance(batch, list) else None


def bytes_along(places: Sequence[Keys]) -> Callable[[Any], int]:
    """Return what gives the bytes of the arrays that some keys lead to; 0 of a batch without."""

    def measure(batch: Any) -> int:
        total = 0
        try:
            for keys in places:
                array = batch
                for key in keys:
                    array = array[key]
                total += int(array.nbytes)
        except Exception:  # a batch of another kind is no reason to stop recording
            return 0
        return total

    return measure


def large_arrays(batch: object) -> tuple[Any, list[Keys]]:
    """Return the largest array in a batch, and the keys to all that are a quarter of it or more.

    ValueError where there is none.
    """
    found = list(_arrays(batch, ()))
    largest, _ = max(found, key=lambda each: each[0].nbytes)
    return largest, [keys for array, keys in found if 4 * array.nbytes >= largest.nbytes]


def _arrays(batch: object, keys: Keys) -> Iterator[tuple[Any, Keys]]:
    """Yield every array in a batch, and the keys that lead to it."""
    if hasattr(batch, "shape") and hasattr(batch, "nbytes"):
        yield batch, keys
    elif isinstance(batch, (list, tuple, Mapping)):
        parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for key, part in parts:
            yield from _arrays(part, (*keys, key))


def dtype_of_most(arrays: Iterable[Any]) -> str | None:
    """Return the number format of most of the numbers in some arrays, as "float32"."""
    numbers: Counter[str] = Counter()
    for array in arrays:
        numbers[str(array.dtype).removeprefix("torch.")] += array.nbytes // array.itemsize
    return max(numbers, key=numbers.__getitem__, default=None)


def padding_of(batch: object) -> float | None:
    """Return the share (0 to 1) of a batch's tokens that only pad it; None where it has none.

    By its attention mask; else by what the first 64 rows of its first whole-number matrix (B, T)
    on the CPU end in, where that is hardly ever met before their end.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    parts: Sequence[Any] = batch if isinstance(batch, (list, tuple)) else [batch]
    mask = None
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        parts = [mask, batch.get("input_ids")]
    matrices = (part for part in parts if torch.is_tensor(part) and part.dim() == 2 and part.is_cpu)
    tokens = next((each for each in matrices if not each.is_floating_point()), None)
    if tokens is None or not len(tokens) or tokens.shape[1] < LEAST_TOKENS:
        return None
    within = 0
    if tokens is mask:
        padding = float((tokens == 0).mean(dtype=torch.float32))
    else:
        tokens = tokens[:64]
        real = tokens != tokens[:, -1].mode()[0]
        length = int((real * torch.arange(1, tokens.shape[1] + 1)).amax(1).sum())  # of all rows
        padding = 1 - length / tokens.numel()
        within = length - int(real.sum())  # the same number, before a row's end
    return padding if 0 < padding < 1 and within <= 0.02 * tokens.numel() else None
