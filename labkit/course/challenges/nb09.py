"""The challenges of notebook 09, beyond one GPU."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, difference
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal

Send = Callable[[int, Tensor], None]
Receive = Callable[[int], Tensor]

WAIT_S = 20.0  # for a tensor that another rank is to send
SENT = "bytes sent by a rank, over its share"


def ring(rank: int, ranks: int, mine: Tensor, send: Send, receive: Receive) -> Tensor:
    """Return the mean of all ranks' gradients; each rank sends to the next one only."""
    parts = [part.clone() for part in mine.chunk(ranks)]
    after = (rank + 1) % ranks
    before = (rank - 1) % ranks
    for step in range(ranks - 1):  # parts are summed on their way round
        send(after, parts[(rank - step) % ranks])
        parts[(rank - step - 1) % ranks] += receive(before)
    for step in range(ranks - 1):  # then the sums go round
        send(after, parts[(rank + 1 - step) % ranks])
        parts[(rank - step) % ranks] = receive(before)
    return torch.cat(parts) / ranks


@code(
    "09-all-reduce",
    hints=(
        "In a ring every rank sends to the next one and receives from the one before.",
        "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
    ),
    goals=(Goal(ERROR, at_most=1e-5), Goal(SENT, at_least=0.99, at_most=1.01)),
    example=ring,
)
def all_reduce(answer: Answer) -> Numbers:
    """An all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and returns the
    mean of all ranks' gradients mine, whose length is a multiple of ranks. Between them are only
    send(to, tensor) and receive(source). A rank's share is 2 (ranks - 1) / ranks times mine.nbytes.
    """
    errors = []
    shares = []
    for ranks in (2, 3, 4, 8):
        gradients = [torch.randn(ranks * 100) for _ in range(ranks)]
        right = torch.stack(gradients).mean(0)
        share = right.nbytes * 2 * (ranks - 1) / ranks
        means, sent = exchanged(answer, gradients)
        errors += [difference(mean, right) for mean in means]
        shares += [each / share for each in sent]
    return {ERROR: max(errors), SENT: max(shares, key=lambda share: abs(share - 1))}


def exchanged(answer: Answer, gradients: list[Tensor]) -> tuple[list[object], list[int]]:
    """Run every rank in a thread; return what each ends up with, and the bytes it sent."""
    ranks = len(gradients)
    pairs = [(source, to) for source in range(ranks) for to in range(ranks)]
    wires: dict[tuple[int, int], queue.SimpleQueue] = {pair: queue.SimpleQueue() for pair in pairs}
    sent = [0] * ranks

    def work(rank: int) -> object:
        def send(to: int, tensor: Tensor) -> None:
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source: int) -> Tensor:
            try:
                return wires[source, rank].get(timeout=WAIT_S)
            except queue.Empty:
                raise Refused("A rank waits for what no rank sends.") from None

        return answer(rank, ranks, gradients[rank].clone(), send, receive)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks))), sent
