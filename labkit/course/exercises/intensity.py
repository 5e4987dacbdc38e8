"""Challenge: the arithmetic intensity of a matrix product."""

from __future__ import annotations

from typing import Any

from labkit.bench.workbench import Workbench

CASES = ((1024, 1024, 1024, 4), (1, 4096, 4096, 2), (64, 512, 2048, 4), (7, 3, 5, 8))


def check(answer: Any, bench: Workbench) -> None:
    """Compare with 2 m k n FLOPs over the bytes of both inputs and the output."""
    errors = []
    for m, k, n, size in CASES:
        right = 2 * m * k * n / ((m * k + k * n + m * n) * size)
        errors.append(abs(answer(m, k, n, size) - right) / right)
    bench.write("formula", values={"error": max(errors)})


# -- answers: one that passes, and some that do not ------------------------------------------


def formula(m, k, n, bytes_per_number):
    """FLOPs over bytes: read (m, k) and (k, n), write (m, n)."""
    return 2 * m * k * n / ((m * k + k * n + m * n) * bytes_per_number)


def one_flop(m, k, n, bytes_per_number):
    """A multiplication and an addition are two."""
    return m * k * n / ((m * k + k * n + m * n) * bytes_per_number)


def reads_only(m, k, n, bytes_per_number):
    """The result is written, too."""
    return 2 * m * k * n / ((m * k + k * n) * bytes_per_number)


def squares_only(m, k, n, bytes_per_number):
    """n/6 holds for square matrices in FP32."""
    return n / 6
