"""Challenge: a loss averaged over tokens, accumulated over sentences of different lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.bench.workbench import Workbench
from labkit.course.exercises.gradients import compared

LENGTHS = (3, 12, 5, 30)
PAD = -100  # cross_entropy's own ignore_index


def check(answer: Any, bench: Workbench) -> None:
    """Compare with the mean over every real token of all the sentences."""
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).double()
    batches = []
    for length in LENGTHS:
        tokens, targets = torch.randint(0, 20, (2, 4, length))
        targets[1, 2:] = PAD  # the second sentence is shorter than the others
        batches.append((tokens, targets))
    tokens, targets = (torch.cat([b[i].flatten() for b in batches]) for i in (0, 1))
    whole = lambda model: nn.functional.cross_entropy(model(tokens), targets)  # noqa: E731
    bench.write("gradients", values=compared(answer, model, batches, whole))


# -- answers: one that passes, and some that do not ------------------------------------------


def by_token(model, batches):
    """Count the tokens of all batches first; every one weighs the same."""
    from torch.nn.functional import cross_entropy

    count = sum((targets != -100).sum() for _, targets in batches)
    for tokens, targets in batches:
        scores = model(tokens).flatten(0, 1)  # (B * L, words)
        (cross_entropy(scores, targets.flatten(), reduction="sum") / count).backward()


def mean_of_means(model, batches):
    """The tokens of short sentences weigh more than those of long ones."""
    from torch.nn.functional import cross_entropy

    for tokens, targets in batches:
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        (loss / len(batches)).backward()


def padding_too(model, batches):
    """Divides by places in the batch, not by tokens."""
    from torch.nn.functional import cross_entropy

    count = sum(targets.numel() for _, targets in batches)
    for tokens, targets in batches:
        scores = model(tokens).flatten(0, 1)
        (cross_entropy(scores, targets.flatten(), reduction="sum") / count).backward()


def joined(model, batches):
    """All sentences at once, padded to the longest."""
    import torch

    longest = max(tokens.shape[1] for tokens, _ in batches)
    pad = lambda t, v: torch.nn.functional.pad(t, (0, longest - t.shape[1]), value=v)  # noqa: E731
    tokens = torch.cat([pad(tokens, 0) for tokens, _ in batches])
    targets = torch.cat([pad(targets, -100) for _, targets in batches])
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
