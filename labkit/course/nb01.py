"""Notebook 01, GPU anatomy: its challenges."""

from labkit.course.task import Goal, Refused, code, counting, difference
from labkit.wiring import Later

torch = Later("torch")


@code("01-one-crossing",
      "One contiguous block holds them all: flatten and torch.cat.",
      "Views cost nothing: cut the block up again on the other side with split and view.",
      crossings=Goal("crossings", at_most=1),
      bytes=Goal("bytes sent, over those of the pieces", at_most=1.0))  # fmt: skip
class OneCrossing:
    """one crossing instead of three hundred.

    Write a function of (pieces, send): pieces is a list of 300 small FP32 tensors of shapes (rows,
    5), and send(tensor) returns a tensor on the other side. Return the same list, all of it sent,
    with one crossing and no byte more than the pieces have.
    """

    def solution(pieces, send):
        block = send(torch.cat([piece.flatten() for piece in pieces]))
        parts = block.split([piece.numel() for piece in pieces])
        return [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]

    def check(answer):
        pieces = [torch.randn(1 + i % 7, 5) for i in range(300)]
        sent = []

        def send(tensor):
            sent.append(tensor.detach().clone())
            return sent[-1]

        arrived = list(answer([piece.clone() for piece in pieces], send))
        if any(difference(a, b) > 0 for a, b in zip(arrived, pieces, strict=True)):
            raise Refused("It does not return the tensors as they were, in their order.")
        crossed = {tensor.untyped_storage().data_ptr() for tensor in sent}
        if any(tensor.untyped_storage().data_ptr() not in crossed for tensor in arrived):
            raise Refused("It returns tensors that were never sent.")
        extra = sum(t.nbytes for t in sent) / sum(t.nbytes for t in pieces)
        return {"crossings": len(sent), "bytes": extra}


@code("01-batched", "torch.bmm, and @ too, take a whole batch of matrices.",
      operations=Goal("operations", at_most=10),
      flops=Goal("FLOPs over those needed", at_least=1.0, at_most=1.01))  # fmt: skip
class Batched:
    """five hundred products in a few calls.

    Write a function of (a, b), two tensors (500, 24, 24), that returns the 500 products with at
    most ten operations, and no more FLOPs than the products need.
    """

    def start(a, b):
        return torch.stack([x @ y for x, y in zip(a, b, strict=True)])

    def solution(a, b):
        return a @ b

    def check(answer):
        from torch.utils.flop_counter import FlopCounterMode

        a, b = torch.randn(2, 500, 24, 24)
        given = a.clone(), b.clone()
        with FlopCounterMode(display=False) as flops, counting() as counted:
            found = answer(*given)
        if difference(found, a @ b) > 1e-5:
            raise Refused("It does not return all the products, as (count, n, n).")
        needed = 2 * 500 * 24**3
        return {"operations": len(counted.names), "flops": flops.get_total_flops() / needed}


@code("01-intensity",
      "Each of the m n results takes k multiplications and k additions.",
      "The bytes: m k and k n numbers are read, m n are written.",
      error=Goal("largest error, as a share", at_most=1e-6))  # fmt: skip
class Intensity:
    """intensity by arithmetic.

    Write a function of (m, k, n, bytes_per_number) that returns the FLOP per byte of an (m, k)
    times (k, n) product: inputs read once, the result written once, a multiply-add counted as two.
    """

    def solution(m, k, n, bytes_per_number):
        return 2 * m * k * n / ((m * k + k * n + m * n) * bytes_per_number)

    def check(answer):
        cases = ((1024, 1024, 1024, 4), (1, 4096, 4096, 2), (64, 512, 2048, 4), (7, 3, 5, 8))
        return {"error": max(abs(answer(*case) / Intensity.solution(*case) - 1) for case in cases)}
