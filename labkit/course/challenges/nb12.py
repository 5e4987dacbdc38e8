"""The challenges of notebook 12, inference."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, difference
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal

MOVED = "bytes moved over those given"


class MovedBytes(TorchDispatchMode):
    """Counts the bytes that PyTorch's operations read and write, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation and count it."""
        result = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            leaves = tree_leaves((args, kwargs, result))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result


class Preallocated:
    """A cache that makes room once and writes each new token into its place."""

    def __init__(self, longest: int):
        self.longest = longest
        self.length = 0

    def grown(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take new keys and values (B, H, T, D); return those of all tokens so far."""
        if not self.length:
            batch, heads, _, size = keys.shape
            self.kept = keys.new_empty(2, batch, heads, self.longest, size)
        end = self.length + keys.shape[2]
        self.kept[0, :, :, self.length : end] = keys
        self.kept[1, :, :, self.length : end] = values
        self.length = end
        return self.kept[0, :, :, :end], self.kept[1, :, :, :end]


@code(
    "12-cache",
    hints=(
        "Make room for all `longest` tokens at the first call, and remember how many there are.",
        "Write into a slice, return another: a slice is a view, and moves nothing.",
    ),
    goals=(Goal(ERROR, at_most=0), Goal(MOVED, at_most=6)),
    example=Preallocated,
)
def cache(answer: Answer) -> Numbers:
    """A cache that copies nothing twice.

    Write a class with the same two methods as the one in the notebook that returns the same, and
    moves at most six times the bytes of the keys and values that it is given. No text is longer
    than longest.
    """
    errors = []
    moved = 0
    given = 0
    for lengths in ([16] + [1] * 48, [1] * 64):
        kept = answer(sum(lengths))
        texts = torch.randn(2, 2, 4, sum(lengths), 8)  # keys and values (B, H, T, D)
        end = 0
        for length in lengths:
            new = texts[:, :, :, end : end + length].clone()
            end += length
            with MovedBytes() as counted:
                found = kept.grown(new[0], new[1])
            moved += counted.bytes
            given += new.nbytes
            if not isinstance(found, tuple) or len(found) != 2:
                raise Refused("grown() must return two tensors: all keys, all values.")
            errors += [difference(found[each], texts[each, :, :, :end]) for each in range(2)]
    return {ERROR: max(errors), MOVED: moved / given}
