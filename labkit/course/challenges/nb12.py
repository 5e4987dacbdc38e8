"""The challenges of notebook 12, inference."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, Counting, difference
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal

MOVED = "bytes moved over those given"
BROKEN = "broken rules"
STEPS = "steps over the least possible"


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
            with Counting() as counted:
                found = kept.grown(new[0], new[1])
            moved += counted.bytes
            given += new.nbytes
            if not isinstance(found, tuple) or len(found) != 2:
                raise Refused("grown() must return two tensors: all keys, all values.")
            errors += [difference(found[each], texts[each, :, :, :end]) for each in range(2)]
    return {ERROR: max(errors), MOVED: moved / given}


def longest_first(lengths: Sequence[int], slots: int) -> list[list[int]]:
    """Return the requests of each step; a place that becomes free is filled in the next one."""
    waiting = sorted(range(len(lengths)), key=lambda request: lengths[request])
    left = {}
    steps = []
    while waiting or left:
        while waiting and len(left) < slots:
            request = waiting.pop()  # the longest that waits
            left[request] = lengths[request]
        steps.append(list(left))
        left = {request: tokens - 1 for request, tokens in left.items() if tokens > 1}
    return steps


@code(
    "12-batching",
    hints=(
        "A request that ends leaves a place: fill it in the very next step.",
        "The longest answers first: at the end only short ones are left to be spread.",
    ),
    goals=(Goal(BROKEN, at_most=0), Goal(STEPS, at_most=1.1)),
    example=longest_first,
)
def batching(answer: Answer) -> Numbers:
    """No place stays empty.

    A decode step serves at most slots requests. Write a function of (lengths, slots) that returns
    the steps, lists of request numbers: each request is in as many steps as its answer has tokens,
    one after another without a break. At most 10 % more steps than the least possible.
    """
    generator = random.Random(5)
    broken = 0
    taken = 0
    least = 0
    for slots in (1, 4, 16):
        lengths = [round(generator.lognormvariate(3, 1)) + 1 for _ in range(20 * slots)]
        steps = [list(step) for step in answer(list(lengths), slots)]
        served: dict[int, list[int]] = {request: [] for request in range(len(lengths))}
        for number, step in enumerate(steps):
            broken += len(step) > slots or len(set(step)) < len(step)
            for request in step:
                served[request].append(number)
        for request, places in served.items():
            first = min(places, default=0)
            is_unbroken = places == list(range(first, first + lengths[request]))
            broken += not is_unbroken
        taken += len(steps)
        least += max(-(-sum(lengths) // slots), *lengths)
    return {BROKEN: broken, STEPS: taken / least}
