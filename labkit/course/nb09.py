"""Notebook 09, beyond one GPU: its challenges."""

from __future__ import annotations

import math
import queue
import sys
import threading
from typing import Any

from labkit.course.answers import Refused, difference
from labkit.course.task import at_least, at_most, code, knobs
from labkit.spec import Distributed, Pipeline

SMALL = Pipeline(
    dataset="sleep", prep_ms=0.0, model="mlp", width=64, depth=1, image_px=16, batch_size=64,
    steps=32, xray=False,
)  # fmt: skip
WAIT_S = 20.0


def exchanging(ranks: Any, _baseline: Any) -> float | None:
    """Return the share of the steps in which rank 0 exchanges gradients."""
    exchanged = ranks[0].exchange_ns
    return float((exchanged[:, 0] == exchanged[:, 0]).mean()) if len(exchanged) else None  # no NaN


def update_size(ranks: Any, _baseline: Any) -> float:
    """Return the samples that one update is made of, on all ranks."""
    return ranks.pipeline.batch_size * ranks.pipeline.accumulation_steps * ranks.world_size


if sys.platform != "win32":  # PyTorch's launcher does not start there
    knobs(
        "09-no-sync",
        "an exchange for every fourth step",
        "Two ranks exchange their gradients in every step. Let them do so in a quarter of the "
        "steps, with 128 samples an update as before.",
        at_least(0.2, "share of steps that exchange", exchanging, at_most=0.3),
        at_least(128, "samples an update", update_size, at_most=128),
        hints=(
            "accumulation_steps alone still exchanges after every backward pass.",
            "A batch a quarter as large, four of them an update, and no_sync.",
        ),
        base=Distributed(SMALL, ranks=2),
        free=("batch_size", "accumulation_steps", "no_sync"),
        same_losses=False,
        compares=False,
        solution={"batch_size": 16, "accumulation_steps": 4, "no_sync": True},
    )


@code(
    "09-all-reduce",
    "In a ring everybody sends to the next and receives from the one before.",
    "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
    error=at_most(1e-5, "largest error, as a share"),
    most=at_most(1.01, "most sent, over the share"),
    least=at_least(0.99, "least sent, over the share"),
)
def all_reduce(answer: Any) -> dict[str, float]:
    """an all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and
    returns the mean of all ranks' gradients mine, a tensor whose length is a multiple of
    ranks. send(to, tensor) and receive(source) are all there is between them. No rank
    may send more than its share: 2 (ranks - 1) / ranks times the bytes of mine.
    """
    import torch

    worst, shares = 0.0, []
    for ranks in (2, 3, 4, 8):
        gradients = [torch.randn(ranks * 100) for _ in range(ranks)]
        means, sent = exchanged(answer, gradients)
        right = torch.stack(gradients).mean(0)
        worst = max([worst, *(difference(mean, right) for mean in means)])
        shares += [each / right.nbytes / (2 * (ranks - 1) / ranks) for each in sent]
    return {"error": worst, "most": max(shares), "least": min(shares)}


def exchanged(answer: Any, gradients: list) -> tuple[list, list[int]]:
    """Run every rank in a thread; return what each ends up with, and the bytes it sent."""
    ranks = len(gradients)
    wires = {(a, b): queue.SimpleQueue() for a in range(ranks) for b in range(ranks)}
    means, sent, errors = [None] * ranks, [0] * ranks, []

    def work(rank: int) -> None:
        def send(to: int, tensor: Any) -> None:
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source: int) -> Any:
            return wires[source, rank].get(timeout=WAIT_S)

        try:
            means[rank] = answer(rank, ranks, gradients[rank].clone(), send, receive)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    if errors and isinstance(errors[0], queue.Empty):
        raise Refused("A rank waits for what nobody sends.")
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise Refused("The ranks do not come to an end.")
    return means, sent


@all_reduce.starts_from
def everyone_to_everyone(rank, ranks, mine, send, receive):
    """Right, and more bytes with every rank."""
    others = [other for other in range(ranks) if other != rank]
    for other in others:
        send(other, mine)
    return (mine + sum(receive(other) for other in others)) / ranks


@all_reduce.solved_by
def ring(rank, ranks, mine, send, receive):
    """In a ring: parts are summed on their way round, then the sums go round."""
    import torch

    parts = [part.clone() for part in mine.chunk(ranks)]
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(ranks - 1):
        send(after, parts[(rank - step) % ranks])
        parts[(rank - step - 1) % ranks] += receive(before)
    for step in range(ranks - 1):
        send(after, parts[(rank + 1 - step) % ranks])
        parts[(rank - step) % ranks] = receive(before)
    return torch.cat(parts) / ranks


@code(
    "09-shards",
    "All ranks need the same order: seed it with the epoch, not with the rank.",
    "Fill the order up from its start to a multiple of ranks, then order[rank::ranks].",
    missing=at_most(0, "samples that nobody has"),
    uneven=at_most(0, "shares of another length"),
    repeated=at_most(0, "samples repeated needlessly"),
    stale=at_most(0, "epochs without an order of their own"),
)
def shards(answer: Any) -> dict[str, float]:
    """every rank its share.

    Write a function of (count, ranks, rank, epoch) that returns the indices one rank
    trains on in one epoch: every sample is somebody's, all ranks have equally many
    (repeat as few samples as that takes), and each epoch has an order of its own.
    """
    missing = uneven = repeated = stale = 0
    for count, ranks in ((100, 4), (103, 4), (17, 8), (64, 1)):
        orders = set()
        each = math.ceil(count / ranks)
        for epoch in range(3):
            shares = [list(answer(count, ranks, rank, epoch)) for rank in range(ranks)]
            drawn = [index for share in shares for index in share]
            missing += len(set(range(count)) - set(drawn))
            uneven += sum(len(share) != each for share in shares)
            repeated += max(0, len(drawn) - len(set(drawn)) - (ranks * each - count))
            stale += tuple(drawn) in orders or drawn == sorted(drawn)
            orders.add(tuple(drawn))
    return {"missing": missing, "uneven": uneven, "repeated": repeated, "stale": stale}


@shards.solved_by
def shared_order(count, ranks, rank, epoch):
    """One order for all ranks, from the epoch; filled up from its start; every so-many-th."""
    import random

    order = random.Random(epoch).sample(range(count), count)
    order += order[: -count % ranks]
    return order[rank::ranks]
