"""Notebook 09, beyond one GPU: its challenges."""

import queue
import sys
import threading

from labkit.course.answer import Refused
from labkit.course.task import Goal, code, difference, knobs
from labkit.spec import Distributed, Pipeline

SMALL = Pipeline(
    dataset="sleep", prep_ms=0.0, model="mlp", width=64, depth=1, image_px=16, batch_size=64,
    steps=32, xray=False,
)  # fmt: skip
WAIT_S = 20.0


def exchanging(ranks, _):
    """Return the share of the steps in which rank 0 exchanges gradients."""
    exchanged = ranks[0].exchange_ns
    return float((exchanged[:, 0] == exchanged[:, 0]).mean()) if len(exchanged) else None  # no NaN


def update_size(ranks, _):
    """Return the samples that one update is made of, on all ranks."""
    return ranks.pipeline.batch_size * ranks.pipeline.accumulation_steps * ranks.world_size


if sys.platform != "win32":  # PyTorch's launcher does not start there
    knobs(
        "09-no-sync",
        "an exchange for every fourth step",
        "Two ranks exchange their gradients in every step. Let them do so in a quarter of the "
        "steps, with 128 samples an update as before.",
        Goal("share of steps that exchange", exchanging, at_least=0.2, at_most=0.3),
        Goal("samples an update", update_size, at_least=128, at_most=128),
        hints=(
            "accumulation_steps alone still exchanges after every backward pass.",
            "A batch a quarter as large, four of them an update, and no_sync.",
        ),
        base=Distributed(SMALL, ranks=2), free=("batch_size", "accumulation_steps", "no_sync"),
        compares=False, solution={"batch_size": 16, "accumulation_steps": 4, "no_sync": True},
    )  # fmt: skip


def everyone_to_everyone(rank, ranks, mine, send, receive):
    """Right, and more bytes with every rank."""
    others = [other for other in range(ranks) if other != rank]
    for other in others:
        send(other, mine)
    return (mine + sum(receive(other) for other in others)) / ranks


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
    "09-all-reduce",
    "In a ring everybody sends to the next and receives from the one before.",
    "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
    start=everyone_to_everyone, solution=ring,
    error=Goal("largest error, as a share", at_most=1e-5),
    most=Goal("most sent, over the share", at_most=1.01),
    least=Goal("least sent, over the share", at_least=0.99),
)  # fmt: skip
def all_reduce(answer, torch):
    """an all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and returns the
    mean of all ranks' gradients mine, a tensor whose length is a multiple of ranks. send(to,
    tensor) and receive(source) are all there is between them. No rank may send more than its share:
    2 (ranks - 1) / ranks times the bytes of mine.
    """
    errors, shares = [], []
    for ranks in (2, 3, 4, 8):
        gradients = [torch.randn(ranks * 100) for _ in range(ranks)]
        means, sent = exchanged(answer, gradients)
        right = torch.stack(gradients).mean(0)
        errors += [difference(mean, right) for mean in means]
        shares += [each / right.nbytes / (2 * (ranks - 1) / ranks) for each in sent]
    return {"error": max(errors), "most": max(shares), "least": min(shares)}


def exchanged(answer, gradients):
    """Run every rank in a thread; return what each ends up with, and the bytes it sent."""
    ranks = len(gradients)
    wires = {(a, b): queue.SimpleQueue() for a in range(ranks) for b in range(ranks)}
    means, sent, errors = [None] * ranks, [0] * ranks, []

    def work(rank):
        def send(to, tensor):
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source):
            return wires[source, rank].get(timeout=WAIT_S)

        try:
            means[rank] = answer(rank, ranks, gradients[rank].clone(), send, receive)
        except queue.Empty:
            errors.append(Refused("A rank waits for what nobody sends."))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise Refused("The ranks do not come to an end.")
    return means, sent


def shared_order(count, ranks, rank, epoch):
    """One order for all ranks, from the epoch; filled up from its start; every so-many-th."""
    import random

    order = random.Random(epoch).sample(range(count), count)
    order += order[: -count % ranks]
    return order[rank::ranks]


@code(
    "09-shards",
    "All ranks need the same order: seed it with the epoch, not with the rank.",
    "Fill the order up from its start to a multiple of ranks, then order[rank::ranks].",
    solution=shared_order, missing=Goal("samples that nobody has", at_most=0),
    uneven=Goal("shares of another length", at_most=0),
    repeated=Goal("samples repeated needlessly", at_most=0),
    stale=Goal("epochs without an order of their own", at_most=0),
)  # fmt: skip
def shards(answer, _torch):
    """every rank its share.

    Write a function of (count, ranks, rank, epoch) that returns the indices one rank trains on in
    one epoch: every sample is somebody's, all ranks have equally many (repeat as few samples as
    that takes), and each epoch has an order of its own.
    """
    missing = uneven = repeated = stale = 0
    for count, ranks in ((100, 4), (103, 4), (17, 8), (64, 1)):
        each, orders = -(-count // ranks), set()
        for epoch in range(3):
            shares = [list(answer(count, ranks, rank, epoch)) for rank in range(ranks)]
            drawn = [index for share in shares for index in share]
            missing += len(set(range(count)) - set(drawn))
            uneven += sum(len(share) != each for share in shares)
            repeated += max(0, len(drawn) - len(set(drawn)) - (ranks * each - count))
            stale += tuple(drawn) in orders or drawn == sorted(drawn)
            orders.add(tuple(drawn))
    return {"missing": missing, "uneven": uneven, "repeated": repeated, "stale": stale}
