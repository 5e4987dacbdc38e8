"""The challenges of notebook 12, inference."""

from __future__ import annotations

import random

from labkit.course.task import Goal, Refused, code, counting, difference


@code("12-cache",
      "Make room for all `longest` tokens at the first call, and remember how many there are.",
      "Write into a slice, return another: a slice is a view, and moves nothing.",
      wrong=Goal("largest error, as a share", at_most=0),
      moved=Goal("bytes moved over those given", at_most=6))  # fmt: skip
class Cache:
    """a cache that copies nothing twice.

    Write a class with the same two methods that returns the same, and moves at most six times the
    bytes of the keys and values that it is given. No text is longer than longest.
    """

    class start:
        def __init__(self, longest):
            self.keys = self.values = None

        def grown(self, keys, values):  # (B, H, T, D) each, of T new tokens
            import torch

            if self.keys is not None:
                keys = torch.cat([self.keys, keys], dim=2)
                values = torch.cat([self.values, values], dim=2)
            self.keys, self.values = keys, values
            return keys, values  # of all tokens so far

    class solution:
        def __init__(self, longest):
            self.longest = longest
            self.length = 0

        def grown(self, keys, values):
            if not self.length:
                batch, heads, _, size = keys.shape
                self.kept = keys.new_empty(2, batch, heads, self.longest, size)
            end = self.length + keys.shape[2]
            self.kept[0, :, :, self.length : end] = keys
            self.kept[1, :, :, self.length : end] = values
            self.length = end
            return self.kept[0, :, :, :end], self.kept[1, :, :, :end]

    def check(answer):
        import torch

        errors = []
        moved = given = 0
        for lengths in ([16] + [1] * 48, [1] * 64):
            kept = answer(sum(lengths))
            texts = torch.randn(2, 2, 4, sum(lengths), 8)  # keys and values (B, H, T, D)
            end = 0
            for length in lengths:
                new = texts[:, :, :, end : end + length].clone()
                end += length
                with counting() as counted:
                    found = kept.grown(new[0], new[1])
                moved += counted.bytes
                given += new.nbytes
                if not isinstance(found, tuple) or len(found) != 2:
                    raise Refused("grown() must return two tensors: all keys, all values.")
                errors += [difference(found[i], texts[i, :, :, :end]) for i in range(2)]
        return {"wrong": max(errors), "moved": moved / given}


@code("12-batching",
      "A request that ends leaves a place: fill it in the very next step.",
      "The longest answers first: at the end there are only short ones to be spread.",
      wrong=Goal("broken rules", at_most=0),
      steps=Goal("steps over the least possible", at_most=1.1))  # fmt: skip
class Batching:
    """no place stays empty.

    A decode step serves at most slots requests. Write a function of (lengths, slots) that returns
    the steps, lists of request numbers: each request is in as many steps as its answer has tokens,
    one after another without a break. At most 10 % more steps than the least possible.
    """

    def start(lengths, slots):
        steps = []
        for first in range(0, len(lengths), slots):
            batch = range(first, min(first + slots, len(lengths)))
            for token in range(max(lengths[i] for i in batch)):
                steps.append([i for i in batch if token < lengths[i]])
        return steps

    def solution(lengths, slots):
        waiting = sorted(range(len(lengths)), key=lambda i: lengths[i])
        left = {}
        steps = []
        while waiting or left:
            while waiting and len(left) < slots:
                request = waiting.pop()  # the longest that waits
                left[request] = lengths[request]
            steps.append(list(left))
            left = {request: tokens - 1 for request, tokens in left.items() if tokens > 1}
        return steps

    def check(answer):
        rng = random.Random(5)
        wrong = taken = least = 0
        for slots in (1, 4, 16):
            lengths = [round(rng.lognormvariate(3, 1)) + 1 for _ in range(20 * slots)]
            steps = [list(step) for step in answer(list(lengths), slots)]
            served = {request: [] for request in range(len(lengths))}
            for number, step in enumerate(steps):
                wrong += len(step) > slots or len(set(step)) < len(step)
                for request in step:
                    served[request].append(number)
            for request, at in served.items():
                wrong += len(at) != lengths[request] or at[-1] - at[0] != len(at) - 1
            taken += len(steps)
            least += max(-(-sum(lengths) // slots), *lengths)
        return {"wrong": wrong, "steps": taken / least}
