"""How all ranks of a run end after the same step."""

from __future__ import annotations

import math

import torch
from torch import distributed as dist

from labkit.bench.loop import UNLIMITED_S
from labkit.stamps.events import now_ns

VOTE_EVERY = 4  # steps, at least, between two votes on whether the time is up


class SharedEnd:
    """Ends all ranks after the same step, by votes over gloo that are read one vote later."""

    def __init__(self, seconds: float | None, accumulation_steps: int):
        self.deadline_ns = now_ns() + int((seconds or UNLIMITED_S) * 1e9)
        # right after an exchange of gradients: there the ranks are in step anyway
        self.every = accumulation_steps * math.ceil(VOTE_EVERY / accumulation_steps)
        self.group = dist.new_group(backend="gloo")
        self.steps = 0
        self.vote = torch.zeros(1)
        self.sent: dist.Work | None = None

    def __call__(self) -> bool:
        """Count a step; return whether it was the last one for everybody."""
        self.steps += 1
        if self.steps % self.every:
            return False
        over = self.wait()
        self.vote = torch.tensor([float(now_ns() > self.deadline_ns)])
        # PyTorch 2.14 types a group as an int where a rank is not in it; here all are
        self.sent = dist.all_reduce(  # pyright: ignore[reportCallIssue]
            self.vote,
            dist.ReduceOp.MAX,
            self.group,  # pyright: ignore[reportArgumentType]
            async_op=True,
        )
        return over

    def wait(self) -> bool:
        """Wait for the vote that is under way, if any; return its result."""
        if self.sent is None:
            return False
        self.sent.wait()
        return bool(self.vote.item())
