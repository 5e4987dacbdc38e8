"""Mysteries: runs whose settings are hidden, and whose bottleneck is to be named."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from labkit.course.score import keep
from labkit.diagnosis.findings import BOTTLENECKS
from labkit.knobs import check_names
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.spec import Pipeline

TRIES = 3
NAMES = tuple(name for name in BOTTLENECKS if name not in ("communication", "straggler", "unsure"))
# A healthy step of 20 to 40 ms on one core; on a GPU width and depth are found for the card
BASES: dict[str, dict[str, Any]] = {
    "cpu": {"width": 48, "depth": 3, "image_px": 64, "steps": 24},
    "gpu": {"steps": 40},
}


@dataclass(frozen=True)
class Hidden:
    """What is behind a mystery: knobs that make a pipeline slow in one way, or leave it healthy.

    They take at least a fifth of the time, so that a figure can show it.
    """

    what: str
    bottleneck: str  # the right answer
    knobs: dict[str, Any]
    on_gpu: dict[str, Any] = field(default_factory=dict)  # those that differ there
    devices: tuple[str, ...] = ("cpu", "gpu")  # where it shows

    def pipeline(self, kind: str, seed: int) -> Pipeline:
        """Return the pipeline to run on a "cpu" or "gpu"."""
        usual = {"dataset": "array", "seconds": 10.0, "fused_optimizer": True, "seed": seed}
        more = self.on_gpu if kind == "gpu" else {}
        return Pipeline(**(usual | BASES[kind] | self.knobs | more))


HIDDEN = (
    Hidden("8 ms of storage wait an item, and no workers", "input", {"io_ms": 8.0}),
    Hidden("450 ms of stall in one of 6 batches", "input", {"stall_ms": 450.0, "stall_every": 6}),
    Hidden(
        "40 rounds of augmentation in one worker",
        "input",
        {"dataset": "jpeg", "io_ms": 0.0, "num_workers": 1, "augment": 40},
    ),
    Hidden(
        "a batch size of 1",
        "launch",
        {"width": 8, "depth": 3, "image_px": 32, "batch_size": 1, "steps": 100},
        {"depth": 12},
    ),
    Hidden(
        "an optimizer that is not fused, on large weights",
        "memory_bandwidth",
        {"model": "mlp", "width": 768, "image_px": 48, "fused_optimizer": False},
        {"width": 8192, "depth": 4},
    ),
    Hidden(
        "FP32, where 16 bits would do",
        "precision",
        {"width": 512, "depth": 2, "image_px": 64},
        devices=("gpu",),
    ),
    Hidden(
        "a CNN that is large enough",
        "compute",
        {"width": 1024, "depth": 2, "image_px": 64, "precision": "fp16"},
        devices=("gpu",),  # a CPU may do it faster in BF16
    ),
    Hidden(
        "a transformer that is large enough",
        "compute",
        {"model": "transformer", "width": 192, "image_px": 48},
        {"width": 5120, "depth": 1, "batch_size": 96, "precision": "fp16"},
    ),
)


class Mystery:
    """A run whose settings are hidden: look at `.plot()`, then `.answer("input")`."""

    def __init__(self, hidden: Hidden, number: int, run: Run):
        """Hide `run`, which is mystery `number`."""
        self._hidden = hidden
        self._number = number
        self.run = run
        self.tries = 0
        self._over = False
        run.alias = "a mystery run"

    def plot(self) -> Any:
        """Draw the run with its knobs left out, as a matplotlib Figure."""
        return self.run.plot()

    def answer(self, bottleneck: str) -> str:
        """Return whether `bottleneck` is the right one; at the third try, also what it was.

        The score keeps the tries until then. `...` stands for no answer yet; an unknown word is no
        try, and the names to choose from are returned.
        """
        if bottleneck is None or bottleneck is ...:
            return "No answer yet."
        try:
            check_names([bottleneck], NAMES, "bottleneck")
        except ValueError as unknown:
            return str(unknown)
        right = bottleneck == self._hidden.bottleneck
        self.tries += 1
        if not self._over:
            keep("mysteries", f"mystery {self._number}", tries=self.tries, right=right)
        if not right and self.tries < TRIES:
            return f"Not {bottleneck}. Look again at what the device waits for."
        self.run.alias = None  # shows its knobs now
        self._over = True
        said = f"Right, at try {self.tries}." if right else f"Not {bottleneck} either."
        if self._hidden.bottleneck == "compute":
            return f"{said} It was healthy ({self._hidden.what}): the device itself is the limit."
        return f"{said} It was {self._hidden.bottleneck}: {self._hidden.what}."

    def __repr__(self) -> str:
        return f"Mystery({self.run!r})"


def mystery(number: int = 0) -> Mystery:
    """Run mystery `number` of those that show on this device (about five seconds).

    The same number is the same mystery. Raises RuntimeError where its run failed.
    """
    kind = machine().kind
    possible = [each for each in HIDDEN if kind in each.devices]
    hidden = random.Random(number).choice(possible)
    run = launch(hidden.pipeline(kind, number)).wait_or_raise()
    if run.outcome != "finished" or not run.throughput:
        raise RuntimeError(f"It did not finish: {run.error or run.outcome}")
    return Mystery(hidden, number, run)
