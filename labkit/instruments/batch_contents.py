"""What is in a batch of somebody else's loop: samples, bytes, a number format, padding.

Nothing here imports torch, runs their code, or waits for a device: only arrays and tensors of just
torch's and NumPy's own classes are asked, and containers by the methods that Python has built in.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from statistics import fmean
from typing import Any, TypeAlias

from labkit.instruments.before_calls import held
from labkit.stamps.events import EventLog
from labkit.stamps.interrupts import OwnErrors

MOST_PARTS = 50  # of a batch, whose bytes are added up
LOOK_EVERY = 16  # batches, for their padding
LEAST_TOKENS = 8  # in a row of text
ELSEWHERE = 0.02  # of a text's tokens may be the one that pads, and not at its end
ARRAYS = {("torch", "Tensor"), ("numpy", "ndarray")}

Batch: TypeAlias = Any  # whatever a collate function makes


def unseen() -> contextlib.AbstractContextManager[object]:
    """Keep what is asked of tensors within the block from the modes and classes of a user's."""
    torch = sys.modules.get("torch")
    return torch._C.DisableTorchFunction() if torch else contextlib.nullcontext()


def is_array(part: object) -> bool:
    """Return whether it is a tensor or an array, and not of a class derived from theirs."""
    return _is_array_class(type(part))


@functools.lru_cache(maxsize=64)
def _is_array_class(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in ARRAYS


def parts_of(batch: Any) -> Collection[Any] | None:
    """Return the parts of a list, tuple, mapping or dataclass; None of anything else."""
    if type(batch) in (list, tuple):
        return batch
    if type(batch) is dict:
        return batch.values()
    for kind in (list, tuple):
        if issubclass(type(batch), kind):
            return [*kind.__iter__(batch)]
    kept = held(batch)
    mapping: Any = batch if issubclass(type(batch), dict) else kept.get("data")  # of a UserDict
    if issubclass(type(mapping), dict):
        return dict.values(mapping)
    return kept.values() if "__dataclass_fields__" in vars(type(batch)) else None


def leaves(batch: object) -> Iterator[Any]:
    """Yield what is in a batch, however deep in lists, tuples and mappings."""
    parts = None if is_array(batch) else parts_of(batch)  # which takes longer
    if parts is None:
        yield batch
    else:
        for part in parts:
            yield from leaves(part)


def arrays_in(batch: object) -> Iterator[Any]:
    """Yield the arrays and tensors among the first parts of a batch."""
    return filter(is_array, itertools.islice(leaves(batch), MOST_PARTS))


def samples_in(batch: Any, batch_size: int | None) -> int | None:
    """Return how many samples a batch has: the length of its first array or list; None: unknown."""
    if is_array(batch):
        return batch.shape[0] if len(batch.shape) else None
    parts = parts_of(batch)
    if not parts:
        return None
    if len(parts) == batch_size and issubclass(type(batch), (list, tuple)):
        return batch_size
    for part in parts:
        if (count := samples_in(part, batch_size)) is not None:
            return count
    return len(parts) if issubclass(type(batch), list) else None


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
    for part in leaves(batch):
        is_matrix = type(part) is torch.Tensor and part.dim() == 2 and part.is_cpu and len(part)
        if is_matrix and part.dtype in whole and part.shape[1] >= LEAST_TOKENS:
            tokens = part[:64]
            if not ((tokens == 0) | (tokens == 1)).all():  # no mask
                return max(_padded(tokens), _padded(tokens.flip(1))) or None
    return None


def _padded(tokens: Any) -> float:
    """Return the share of a text (B, T) at the end of its rows that is one and the same token.

    That is 0 where all end in as many, as in a mark of a text's end, or have it elsewhere.
    """
    is_last = tokens == tokens[:, -1].mode()[0]
    counts = is_last.flip(1).cumprod(1).sum(1)  # behind which there is no other token
    elsewhere = is_last.sum() - counts.sum()
    is_filler = elsewhere <= ELSEWHERE * tokens.numel() and (counts != counts[0]).any()
    return int(counts.sum()) / tokens.numel() if is_filler else 0.0


class BatchFacts:
    """What the batches of a watched loop are: how many samples and bytes, how padded."""

    def __init__(self, size: int | None):
        """`size` is the loader's own batch size, where that is known."""
        self.size = size
        self.unit = "samples"  # or "batches", where they do not show their samples
        self.shows = False  # whether they do, or only a user's own code could look into them
        self.met = 0  # batches of a loop whose batches are padded
        self.padding: list[float] = []  # its share of those that were looked at
        self.is_padded = False
        self.dtype: str | None = None  # of the largest array in the first
        self.on_gpu = False  # whether the loader makes them there

    def learn(self, batch: object) -> None:
        """Learn what batches like this one show."""
        with OwnErrors():
            self.shows = samples_in(batch, self.size) is not None
            self.unit = "samples" if self.shows or self.size else "batches"
            largest = max(arrays_in(batch), key=lambda array: array.nbytes)
            self.dtype = dtype_of_most([largest])
            self.on_gpu = type(largest).__module__ == "torch" and not largest.is_cpu
            self.is_padded = padding_of(batch) is not None

    def count(self, batch: object) -> int:
        """Return the samples of a batch, and now and then look how much of it is padding."""
        if self.is_padded:
            if self.met % LOOK_EVERY == 0:
                self.padding.append(padding_of(batch) or 0.0)
            self.met += 1
        return (samples_in(batch, self.size) or 0) if self.shows else self.size or 1

    def measure(self, batch: Batch) -> int:
        """Return the bytes of a batch's arrays."""
        if is_array(batch):
            return batch.nbytes
        return sum([array.nbytes for array in arrays_in(batch)])

    def write_padding(self, log: EventLog) -> None:
        """Write how much of the batches is padding, where it was looked for."""
        if self.padding:
            log.write("padding", share=round(fmean(self.padding), 4))
