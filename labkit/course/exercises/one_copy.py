"""Challenge: many small tensors in one crossing."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused


def check(answer: Any, bench: Workbench) -> None:
    """Count crossings and bytes; what comes back must have crossed."""
    pieces = [torch.randn(1 + i % 7, 5) for i in range(300)]
    sent: list[torch.Tensor] = []

    def send(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor.detach().clone())
        return sent[-1]

    arrived = list(answer([piece.clone() for piece in pieces], send))
    if len(arrived) != len(pieces):
        raise Refused(f"It returns {len(arrived)} tensors for {len(pieces)}.")
    if any(difference(a, b) > 0 for a, b in zip(arrived, pieces, strict=True)):
        raise Refused("It does not return the tensors as they were, in their order.")
    crossed = {tensor.untyped_storage().data_ptr() for tensor in sent}
    if any(tensor.untyped_storage().data_ptr() not in crossed for tensor in arrived):
        raise Refused("It returns tensors that were never sent.")
    extra = sum(t.nbytes for t in sent) / sum(t.nbytes for t in pieces)
    bench.write("sent", values={"crossings": len(sent), "bytes": extra})


# -- answers: one that passes, and some that do not ------------------------------------------


def each(pieces, send):
    """A crossing each."""
    return [send(piece) for piece in pieces]


def together(pieces, send):
    """Joined to one block, sent once, cut up again on the other side."""
    import torch

    block = send(torch.cat([piece.flatten() for piece in pieces]))
    parts = block.split([piece.numel() for piece in pieces])
    return [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]


def padded(pieces, send):
    """One crossing, but of mostly padding."""
    import torch

    block = torch.zeros(len(pieces), 7, 5)
    for place, piece in zip(block, pieces, strict=True):
        place[: len(piece)] = piece
    arrived = send(block)
    return [place[: len(piece)] for place, piece in zip(arrived, pieces, strict=True)]


def stay_here(pieces, send):
    """Sends one, returns the others as they are."""
    return [send(pieces[0]), *pieces[1:]]
