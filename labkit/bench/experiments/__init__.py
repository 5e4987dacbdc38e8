"""The experiments that are not training runs: small measurements of one thing each.

This file only lists them and imports no torch, so that the kernel can read the list. Each module
has one function, `measure(job, bench)`: `job` holds the parameters, `bench` times, writes and says
what it had to skip (see `labkit.bench.workbench`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Listed:
    """What is known of an experiment without running it."""

    module: str  # in this package
    help: str  # one line: what it measures
    figure: str | None = None  # the module of the show floor whose draw(measurements) draws it
    defaults: dict[str, Any] = field(default_factory=dict)  # its parameters; None = chosen here


EXPERIMENTS = {
    "matrix_products": Listed(
        "matrix_products",
        "a thousand small products one after another against one batched product",
        defaults={"n": 64, "count": 1000},
    ),
}
