"""Notebook 09, beyond one GPU: its challenges."""

import queue
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from labkit.course.task import Goal, KnobTask, Refused, code, difference
from labkit.spec import Distributed, Pipeline
from labkit.wiring import Later

torch = Later("torch")
SMALL = Pipeline(
    dataset="sleep", prep_ms=0.0, model="mlp", width=64, depth=1, image_px=16, batch_size=64,
    steps=32, xray=False,
)  # fmt: skip
WAIT_S = 20.0


def exchanging(ranks, _):
    """Return the share of the steps in which rank 0 exchanges gradients."""
    exchanged = ranks[0].exchange_ns
    return float((exchanged[:, 0] == exchanged[:, 0]).mean()) if len(exchanged) else None  # no NaN


if sys.platform != "win32":  # PyTorch's launcher does not start there
    KnobTask(
        "09-no-sync", "an exchange for every fourth step",
        "Two ranks exchange their gradients in every step. Let them do so in a quarter of the "
        "steps, with 128 samples an update as before.",
        (Goal("share of steps that exchange", exchanging, at_least=0.2, at_most=0.3),
         Goal("samples an update", lambda ranks, _: ranks.world_size * ranks.pipeline.batch_size
              * ranks.pipeline.accumulation_steps, at_least=128, at_most=128)),
        ("accumulation_steps alone still exchanges after every backward pass.",
         "A batch a quarter as large, four of them an update, and no_sync."),
        Distributed(SMALL, ranks=2), {"batch_size": 16, "accumulation_steps": 4, "no_sync": True},
        free=("batch_size", "accumulation_steps", "no_sync"), compares=False,
    )  # fmt: skip


@code("09-all-reduce",
      "In a ring everybody sends to the next and receives from the one before.",
      "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
      error=Goal("largest error, as a share", at_most=1e-5),
      most=Goal("most sent, over the share", at_most=1.01),
      least=Goal("least sent, over the share", at_least=0.99))  # fmt: skip
class AllReduce:
    """an all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and returns the
    mean of all ranks' gradients mine, whose length is a multiple of ranks. Between them are only
    send(to, tensor) and receive(source). A rank's share is 2 (ranks - 1) / ranks times mine.nbytes.
    """

    def start(rank, ranks, mine, send, receive):
        others = [other for other in range(ranks) if other != rank]
        for other in others:
            send(other, mine)
        return (mine + sum(receive(other) for other in others)) / ranks

    def solution(rank, ranks, mine, send, receive):
        parts = [part.clone() for part in mine.chunk(ranks)]
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        for step in range(ranks - 1):  # parts are summed on their way round
            send(after, parts[(rank - step) % ranks])
            parts[(rank - step - 1) % ranks] += receive(before)
        for step in range(ranks - 1):  # then the sums go round
            send(after, parts[(rank + 1 - step) % ranks])
            parts[(rank - step) % ranks] = receive(before)
        return torch.cat(parts) / ranks

    def check(answer):
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
    sent = [0] * ranks

    def work(rank):
        def send(to, tensor):
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source):
            try:
                return wires[source, rank].get(timeout=WAIT_S)
            except queue.Empty:
                raise Refused("A rank waits for what nobody sends.") from None

        return answer(rank, ranks, gradients[rank].clone(), send, receive)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks))), sent


@code("09-shards",
      "All ranks need the same order: seed it with the epoch, not with the rank.",
      "Fill the order up from its start to a multiple of ranks, then order[rank::ranks].",
      missing=Goal("samples that nobody has", at_most=0),
      uneven=Goal("shares of another length", at_most=0),
      repeated=Goal("samples repeated needlessly", at_most=0),
      stale=Goal("epochs without an order of their own", at_most=0))  # fmt: skip
class Shards:
    """every rank its share.

    Write a function of (count, ranks, rank, epoch) that returns the indices a rank trains on: every
    sample is somebody's, all have equally many (repeat no more than that takes), in a new order.
    """

    def solution(count, ranks, rank, epoch):
        order = random.Random(epoch).sample(range(count), count)
        order += order[: -count % ranks]
        return order[rank::ranks]

    def check(answer):
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
