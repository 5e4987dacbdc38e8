"""The capstone's slow script as something to run: which of its bottlenecks are fixed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labkit.bench.slow_settings import FIXES, LADDER, check, settings, usual_steps
from labkit.results.machine import machine
from labkit.spec import Pipeline

TOLERANCE = 0.02  # of the loss: 16-bit formats round, everything else is exact to 1e-4


@dataclass(frozen=True)
class SlowScript:
    """One stage of the slow script; `fixes` are names of `FIXES`, in the order of the ladder.

    `steps` is chosen for this machine where it is None. Raises ValueError for a name that is no
    fix, and for steps outside 1 to 1,000,000.
    """

    fixes: tuple[str, ...] = ()
    steps: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "fixes", check(self.fixes))
        if self.steps is not None:
            Pipeline(steps=self.steps)  # checks it

    @property
    def pipeline(self) -> Pipeline:
        """The knobs that describe this stage on this machine."""
        here = machine()
        gpu, old = here.kind == "gpu", float(here.compute_capability or 9) < 8
        half = "fp16" if gpu and old else "bf16"
        cores = here.cpu_cores or 1
        steps = self.steps or usual_steps(cores)
        return Pipeline(**settings(self.fixes, gpu, cores, steps, half))

    def to_spec(self) -> dict[str, Any]:
        """What the log's first event says of it."""
        return {"pipeline": self.pipeline.to_dict(), "script": {"fixes": list(self.fixes)}}


def stages(fixes: Iterable[str] = LADDER) -> list[SlowScript]:
    """Return the script with nothing fixed, then with one more fix at a time."""
    fixes = tuple(fixes)
    return [SlowScript(fixes[:count]) for count in range(len(fixes) + 1)]


def same_training(run: Any, first: Any, tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError unless two runs of the script did the same work.

    The same samples in the same order (a checksum of the pixels of the first batches), as many of
    them, and the same loss in every step, to `tolerance` of it.
    """
    for each in (run, first):
        if each.outcome != "finished" or not each.event("samples"):
            raise AssertionError(f"no finished run of the slow script: {each!r}")
    pixels = [each.event("samples").get("crc32") for each in (run, first)]
    if pixels[0] != pixels[1] or run.samples != first.samples:
        raise AssertionError("not the same samples in the same order")
    for step, (now, before) in enumerate(zip(run.loss, first.loss, strict=True)):
        if not abs(now - before) <= tolerance * abs(before):
            raise AssertionError(f"another loss in step {step}: {now:.4f}, it was {before:.4f}")


__all__ = ["FIXES", "LADDER", "SlowScript", "same_training", "stages"]
