"""Challenge: the mean of every rank's gradients, without one rank sending more than its share."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused

WAIT_S = 20.0


def check(answer: Any, bench: Workbench) -> None:
    """Run the answer on 2 to 8 ranks, a thread each, and count what each of them sends."""
    worst, most, least = 0.0, 0.0, float("inf")
    for ranks in (2, 3, 4, 8):
        gradients = [torch.randn(ranks * 100) for _ in range(ranks)]
        means, sent = exchanged(answer, gradients)
        right = torch.stack(gradients).mean(0)
        worst = max([worst, *(difference(mean, right) for mean in means)])
        share = [each / right.nbytes / (2 * (ranks - 1) / ranks) for each in sent]
        most, least = max(most, *share), min(least, *share)
    bench.write("exchange", values={"error": worst, "most": most, "least": least})


def exchanged(answer: Any, gradients: list[torch.Tensor]) -> tuple[list, list[int]]:
    """Return what every rank ends up with, and the bytes it sent."""
    ranks = len(gradients)
    wires = {(a, b): queue.SimpleQueue() for a in range(ranks) for b in range(ranks)}
    means, sent, errors = [None] * ranks, [0] * ranks, []

    def work(rank: int) -> None:
        def send(to: int, tensor: torch.Tensor) -> None:
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source: int) -> torch.Tensor:
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


# -- answers: one that passes, and some that do not ------------------------------------------


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


def through_rank_0(rank, ranks, mine, send, receive):
    """Rank 0 sends everything to everybody."""
    if rank:
        send(0, mine)
        return receive(0)
    mean = (mine + sum(receive(other) for other in range(1, ranks))) / ranks
    for other in range(1, ranks):
        send(other, mean)
    return mean


def everyone_to_everyone(rank, ranks, mine, send, receive):
    """Right, and more bytes with every rank."""
    others = [other for other in range(ranks) if other != rank]
    for other in others:
        send(other, mine)
    return (mine + sum(receive(other) for other in others)) / ranks


BLACKBOARD: dict = {}


def blackboard(rank, ranks, mine, send, receive):
    """Ranks on several machines share no memory."""
    import time

    board = BLACKBOARD.setdefault(ranks, {})
    board[rank] = mine
    while len(board) < ranks:
        time.sleep(0.001)
    return sum(board.values()) / ranks
