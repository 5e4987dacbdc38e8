"""What is in a batch of somebody else's loop: samples, bytes, a number format, padding.

Nothing here imports torch, runs their code, or waits for a device: only arrays and tensors of just
torch's and NumPy's own classes are asked, and containers by the methods that Python has built in.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from labkit.instruments.before_calls import held

LEAST_TOKENS = 8  # in a row of text
ARRAYS = {("torch", "Tensor"), ("numpy", "ndarray")}

Batch: TypeAlias = Any  # whatever a collate function makes

Keys = tuple[object, ...]
"""What leads to a part of a batch: indices of lists and tuples, keys of mappings."""


def unseen() -> contextlib.AbstractContextManager[object]:
    """Keep what is asked of tensors within the block from the modes and classes of a user's."""
    torch = sys.modules.get("torch")
    return torch._C.DisableTorchFunction() if torch else contextlib.nullcontext()


def is_array(part: object) -> bool:
    """Return whether it is a tensor or an array, and not of a class derived from theirs."""
    return (type(part).__module__, type(part).__name__) in ARRAYS


def parts_of(batch: Any) -> dict[Any, Any] | None:
    """Return the parts of a container or dataclass by what leads to each; None of others."""
    for kind in (list, tuple):
        if issubclass(type(batch), kind):
            return dict(enumerate(kind.__iter__(batch)))
    kept = held(batch)
    mapping: Any = batch if issubclass(type(batch), dict) else kept.get("data")  # of a UserDict
    if issubclass(type(mapping), dict):
        return {key: part for key, part in dict.items(mapping) if type(key) in (str, int)}
    return kept if "__dataclass_fields__" in vars(type(batch)) else None


def part_at(batch: object, keys: Keys) -> Any:
    """Return the part that some keys lead to; LookupError where there is none."""
    part: Any = batch
    for key in keys:
        part = (part if type(part) in (dict, list, tuple) else parts_of(part) or {})[key]
    return part


def leaves(batch: object) -> Iterator[object]:
    """Yield what is in a batch, however deep in lists, tuples and mappings."""
    return (part for part, _ in leaves_with_keys(batch))


def leaves_with_keys(batch: object, keys: Keys = ()) -> Iterator[tuple[Any, Keys]]:
    """Yield every part of a batch that is no container, and the keys that lead to it."""
    parts = parts_of(batch)
    if parts is None:
        yield batch, keys
    for key, part in (parts or {}).items():
        yield from leaves_with_keys(part, (*keys, key))


def counter_for(batch: object, batch_size: int | None) -> Callable[[Any], int] | None:
    """Return what counts the samples of batches like this: its first array's or list's length.

    A batch of another kind, as a user's loop may meet, is counted by its own, or as 0.
    """
    known = _counted_in(batch, batch_size)
    if known is None:
        return None

    def count(batch: Batch) -> int:
        try:
            return _length(part_at(batch, known))
        except Exception:
            own = _counted_in(batch, batch_size)
            return 0 if own is None else _length(part_at(batch, own))

    return count


def _length(part: Any) -> int:
    return part.shape[0] if is_array(part) else len(parts_of(part) or ())


def _counted_in(batch: Any, batch_size: int | None) -> Keys | None:
    """Return what leads to that whose length is the count of samples; None where it is unknown."""
    if is_array(batch):
        return () if len(batch.shape) else None
    parts = parts_of(batch) or {}
    is_list = issubclass(type(batch), (list, tuple))
    if is_list and len(parts) == batch_size:
        return ()
    for key, part in parts.items():
        inner = _counted_in(part, batch_size)
        if inner is not None:
            return (key, *inner)
    return () if parts and issubclass(type(batch), list) else None


def large_arrays(batch: object) -> tuple[Any, list[Keys]]:
    """Return the largest array in a batch, and the keys to all that are a quarter of it or more.

    ValueError where there is none.
    """
    found = [(part, keys) for part, keys in leaves_with_keys(batch) if is_array(part)]
    largest, _ = max(found, key=lambda each: each[0].nbytes)
    return largest, [keys for array, keys in found if 4 * array.nbytes >= largest.nbytes]


def bytes_at(batch: object, places: Iterable[Keys]) -> int:
    """Return the bytes of the arrays that some keys lead to; 0 of a batch of another kind."""
    try:
        arrays = [part_at(batch, keys) for keys in places]
    except (LookupError, TypeError):  # no reason to stop recording
        return 0
    return sum(int(array.nbytes) for array in arrays) if all(map(is_array, arrays)) else 0


def dtype_of_most(arrays: Iterable[Any]) -> str | None:
    """Return the number format of most of the numbers in some arrays, as "float32"."""
    numbers: Counter[str] = Counter()
    for array in arrays:
        numbers[str(array.dtype).removeprefix("torch.")] += array.nbytes // array.itemsize
    return max(numbers, key=numbers.__getitem__, default=None)


def padding_of(batch: object) -> float | None:
    """Return the share (0 to 1) of a batch's tokens that only pad it; None where it has none.

    It is of the first whole-number matrix (B, T) on the CPU, under whatever key, by what its first
    64 rows end in, or begin with.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    whole = (torch.uint8, torch.int16, torch.int32, torch.int64)
    tensors: list[Any] = [each for each in leaves(batch) if type(each) is torch.Tensor]
    matrices = [each[:64] for each in tensors if each.dim() == 2 and each.is_cpu and len(each)]
    texts = [each for each in matrices if each.dtype in whole and each.shape[1] >= LEAST_TOKENS]
    tokens = next((each for each in texts if not ((each == 0) | (each == 1)).all()), None)
    if tokens is None:
        return None
    fillers = [_filler_at_the_end(text) for text in (tokens, tokens.flip(1))]  # or in front
    filler = max(fillers, key=lambda each: each.sum())
    return float(filler.mean(dtype=torch.float32)) or None


def _filler_at_the_end(tokens: Any) -> Any:
    """Return where rows (B, T) end in the same number, as truth values.

    That is nowhere where all end in as many, as in a mark of a text's end, or have it elsewhere.
    """
    is_last = tokens == tokens[:, -1].mode()[0]
    filler = (~is_last).flip(1).cumsum(1).flip(1) == 0  # no other token is behind it
    within = (is_last & ~filler).sum()
    counts = filler.sum(1)
    return filler & (within <= 0.02 * filler.numel()) & (counts != counts[0]).any()
