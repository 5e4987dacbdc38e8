"""What somebody else's loop has: in a batch samples, bytes, padding; graphs that it keeps.

Nothing here imports torch, runs their code, or waits for a device: only arrays and tensors of just
torch's and NumPy's own classes are asked, and containers by the methods that Python has built in.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator
from statistics import fmean
from types import CodeType, FrameType
from typing import Any, TypeAlias

from labkit.instruments import stack
from labkit.instruments.before_calls import attributes_of
from labkit.stamps.events import EventLog
from labkit.stamps.interrupts import OwnErrors

MOST_PARTS = 50  # of a batch, whose bytes are added up
LOOK_EVERY = 16  # batches, for their padding
LEAST_TOKENS = 8  # in a row of text
ELSEWHERE = 0.02  # of a text's tokens may be the one that pads, and not at its end
LEAST_GROWN = 32  # steps whose graphs are kept: fewer are no growth

Batch: TypeAlias = Any  # whatever a collate function makes


def without_torch_modes() -> contextlib.AbstractContextManager[object]:
    """Read tensors within the block past the user's modes and classes (`__torch_function__`)."""
    torch = sys.modules.get("torch")
    return torch._C.DisableTorchFunction() if torch else contextlib.nullcontext()


def is_array(part: object) -> bool:
    """Return whether it is a tensor or an array, and not of a class derived from theirs."""
    kind = type(part)
    return kind.__name__ in ("Tensor", "ndarray") and kind.__module__ in ("torch", "numpy")


def parts_of(batch: Any) -> Collection[Any] | None:
    """Return the parts of a list, tuple, mapping or dataclass; None of anything else."""
    kind = type(batch)
    if getattr(kind, "__iter__", None) in (list.__iter__, tuple.__iter__):
        return batch
    kept = attributes_of(batch)
    mapping: Any = batch if issubclass(kind, dict) else kept.get("data")  # of a UserDict
    if issubclass(type(mapping), dict):
        return dict.values(mapping)
    return kept.values() if "__dataclass_fields__" in vars(kind) else None


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
    is_list = issubclass(type(batch), list)
    if len(parts) == batch_size and (is_list or issubclass(type(batch), tuple)):
        return batch_size
    counts = (samples_in(part, batch_size) for part in parts)
    return next((count for count in counts if count is not None), len(parts) if is_list else None)


def dtype_of(arrays: Iterable[Any]) -> str | None:
    """Return the number format of the largest array, as "float32"; None where there is none."""
    largest = max(arrays, key=lambda array: array.nbytes, default=None)
    return None if largest is None else str(largest.dtype).removeprefix("torch.")


def padding_of(batch: object) -> float | None:
    """Return the share (0 to 1) of a batch's tokens that only pad it; None where it has none.

    It is of the first whole-number matrix (B, T) on the CPU, under whatever key, by what its first
    64 rows end in, or begin with.
    """
    for part in arrays_in(batch):
        is_text = "int" in str(part.dtype) and len(part.shape) == 2 and len(part)
        if is_text and part.shape[1] >= LEAST_TOKENS and getattr(part, "is_cpu", False):
            tokens = part[:64]
            if tokens.max() > 1:  # no mask
                return max(_padded(tokens), _padded(tokens.flip(1))) or None
    return None


def _padded(tokens: Any) -> float:
    """Return the share of a text (B, T) at the end of its rows that is one and the same token.

    That is 0 where all end in as many, as in a mark of a text's end, or have it elsewhere.
    """
    is_last = tokens == tokens[:, -1].mode()[0]
    counts = is_last.flip(1).cumprod(1).sum(1)  # behind which there is no other token
    elsewhere = is_last.sum() - counts.sum()
    is_filler = elsewhere <= ELSEWHERE * tokens.numel() and counts.unique().numel() > 1
    return int(counts.sum()) / tokens.numel() if is_filler else 0.0


class BatchFacts:
    """What the batches of a watched loop are: how many samples and bytes, how padded."""

    def __init__(self, size: int | None):
        """`size` is the loader's own batch size, where that is known."""
        self.size = size
        self.unit = "samples"  # or "batches", where they do not show their samples
        self.met = 0  # batches
        self.padding: list[float] = []  # its share of those that were looked at
        self.dtype: str | None = None  # of the largest array in the first
        self.on_gpu = False  # whether the loader makes them there

    def learn(self, batch: object) -> None:
        """Learn what batches like this one show."""
        with OwnErrors():
            shows = samples_in(batch, self.size) is not None
            self.unit = "samples" if shows or self.size else "batches"
            arrays = [*arrays_in(batch)]
            self.dtype = dtype_of(arrays)
            self.on_gpu = not all(getattr(each, "is_cpu", True) for each in arrays)

    def size_of(self, batch: object) -> tuple[int, int]:
        """Return the samples and bytes of a batch, and now and then look how much is padding."""
        if self.met % LOOK_EVERY == 0:
            with OwnErrors():
                self.padding.append(padding_of(batch) or 0.0)
        self.met += 1
        size = sum([array.nbytes for array in arrays_in(batch)])
        return samples_in(batch, self.size) or self.size or 1, size

    def write_padding(self, log: EventLog) -> None:
        """Write how much of the batches is padding, where it was looked for."""
        if any(self.padding):
            log.write("padding", share=round(fmean(self.padding), 4))


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.least: dict[str, int] = {}  # by name: the fewest that it was seen with
        # Those that grow, as the `growth` event has them; `before` and `after`: of how many steps
        # they kept the graphs at first, and now
        self.found: list[dict[str, Any]] = []

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        self.found = []
        if frame is None:
            return
        code = frame.f_code
        place = {"file": code.co_filename, "function": code.co_name, "line": frame.f_lineno}
        for name, value in stack.variables(frame).items():
            size = _graphs_in(value)
            least = self.least[name] = min(size, self.least.get(name, size))
            if size >= max(LEAST_GROWN, 2 * least):
                self.found.append({"name": name, "before": least, "after": size, **place})


def _graphs_in(value: Any) -> int:
    """Return how many steps' graphs a list or a dict holds, or a tensor that is added to.

    `best = loss` keeps one graph and is not changed; `total += loss` gets a longer one each time.
    """
    entries: Any = value.values() if type(value) is dict else value
    if type(value) in (list, dict):
        return len(entries) if _has_graph(next(reversed(entries), None)) else 0
    return entries._version if _has_graph(value) else 0


def _has_graph(value: Any) -> bool:
    """Return whether it is a tensor with autograd's graph; attributes of others may be code."""
    return is_array(value) and getattr(value, "grad_fn", None) is not None
