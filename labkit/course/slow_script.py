"""The slow script of notebook 08: which of its bottlenecks are fixed, and what that sets.

Here are its spec and settings; `slow_script_train.py` trains, with the lines of `slow_step.py` and
`fixed_step.py`.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.api import Run
from labkit.bench.quick_runs import quick_run
from labkit.instruments.card_formats import too_old_for
from labkit.knobs import check_names
from labkit.orders import Order
from labkit.results.hardware import machine
from labkit.results.script import Script, script
from labkit.spec import Pipeline

# In the order in which the bottleneck moves; the course's notebook 08 climbs them as a ladder
# {name: the functions of slow_step.py and fixed_step.py that it changes}
FIXES = {
    "data": (),  # loader workers prepare batches beside the training loop
    "items": ("open_manifest", "load_item"),  # nothing parsed twice, no loop over pixels
    "copies": ("packed", "to_device"),  # one pinned block of bytes a batch for lines of floats
    # whole-batch operations for Python loops, no .item() in every step
    "launches": ("normalized", "cross_entropy"),
    "precision": (),  # autocast to 16 bits (bf16; fp16 on cards older than Ampere)
    "memory": ("Activation",),  # fused SiLU and optimizer, channels-last: fewer passes over memory
}
LADDER = tuple(FIXES)
PREFETCH = 2
MOST_WORKERS = 8  # enough for any card once items are lean
# A step's loss in FP32 may differ by this share of it and of the mean loss: late losses are small,
# and rounding that has grown over many updates is large beside them
SAME_LOSS = 0.02
SAME_MEAN_LOSS = 0.05  # of each mean loss, in 16 bits
STEPS = 21  # at least: an x-ray needs 20, a verdict 12 after the warm-up
QUICK_STEPS = 6  # of a quick run, which is not judged


@dataclass(frozen=True)
class SlowScript:
    """One stage of the slow script."""

    fixes: tuple[str, ...] = ()  # names of `FIXES`, kept in the ladder's order

    def __post_init__(self) -> None:
        check_names(map(str, self.fixes), FIXES, "fix")
        object.__setattr__(self, "fixes", tuple(name for name in FIXES if name in self.fixes))

    def but(self, **changes: Any) -> SlowScript:
        """Return a copy with other fixes."""
        return replace(self, **changes)

    @property
    def pipeline(self) -> Pipeline:
        """The knobs that describe this stage on this machine.

        On a GPU the model is left to the bench, which sizes it for the card, and the batch is so
        large that 16 bits do not make its kernels too small.
        """
        here = machine()
        # A Mac's has the CPU's sizes: thousands of copies of one line each would take minutes there
        on_gpu = here.device.startswith("cuda")
        half = "fp16" if too_old_for("bf16", here.compute_capability) else "bf16"
        workers = max(2, min(here.cpu_cores or 1, MOST_WORKERS))
        has_workers = "data" in self.fixes
        copies_whole = on_gpu and "copies" in self.fixes
        fewer_passes = "memory" in self.fixes
        return Pipeline(
            dataset="jpeg",
            io_ms=0.0,
            augment=0,
            image_px=48,
            model="cnn",
            width=None if on_gpu else 40,
            depth=None if on_gpu else 5,
            seconds=100.0,
            # What is prefetched at the start is warm-up, of which a run leaves out a third at most
            steps=QUICK_STEPS if quick_run() else max(STEPS, 3 * PREFETCH * workers),
            batch_size=48 if on_gpu else 16,
            num_workers=workers if has_workers else 0,
            prefetch_factor=PREFETCH if has_workers else None,
            pin_memory=copies_whole,
            non_blocking=copies_whole,
            precision=half if "precision" in self.fixes else "fp32",
            channels_last=fewer_passes,
            fused_optimizer=fewer_passes,
            # On a CPU waits and copies are on top until then, which the steps' own stamps show
            xray=on_gpu or "copies" in self.fixes,
        )

    def to_spec(self) -> Order:
        """Return what the log's first event says of it, and what trains it."""
        return {
            "pipeline": self.pipeline.to_dict(),
            "script": {"fixes": list(self.fixes)},
            "module": "labkit.course.slow_script_train",
        }


def slow_script(*fixes: str, wait: bool = True, before: Run | None = None) -> Run:
    """Run the deliberately slow training script with some of its bottlenecks fixed.

    `fixes` are names of `FIXES`, others raise ValueError; with none of them the script is at its
    slowest. `wait` and `before` are as in `lk.run`.
    """
    from labkit.view import running  # the bench reads this file too, and draws nothing

    return running.started(slow_script, SlowScript(fixes), wait, before)


def other_work(run: Run, first: Run) -> str | None:
    """Say in what two runs of the script did not do the same work; None where they did.

    The same is: as many samples, and the same losses: in FP32 those of every step, to SAME_LOSS,
    which other samples, or another order, would change. Rounding in 16 bits parts two trainings
    step by step: there the mean loss counts, to SAME_MEAN_LOSS.
    """
    for each in (run, first):
        if each.outcome != "finished" or "script" not in (each.event("spec") or {}):
            return f"not a finished run of the slow script: {each!r}"
    if run.samples != first.samples:
        return "not the same samples"
    losses = np.array([run.loss, first.loss])
    now, mean = losses.mean(axis=1)
    tolerance = SAME_LOSS
    if "16" in f"{run.pipeline.precision} {first.pipeline.precision}":
        losses, tolerance = losses.mean(axis=1), SAME_MEAN_LOSS
    is_same = np.allclose(*losses, rtol=tolerance, atol=tolerance * mean)
    return None if is_same else f"other losses: {now:.4f} in the mean, it was {mean:.4f}"


def changed_code(fix: str) -> Script:
    """Return what a fix changes, as a unified diff in plain PyTorch.

    First the functions of `slow_step.py` against those of `fixed_step.py`, then what the knobs
    change in the training script that `lk.script` writes.
    """
    from labkit.course import fixed_step, slow_step  # they import torch

    check_names([fix], FIXES, "fix")
    lines = []
    for name in FIXES[fix]:
        slow = inspect.getsource(getattr(slow_step, name)).splitlines()
        fixed = inspect.getsource(getattr(fixed_step, name)).splitlines()
        lines += difflib.unified_diff(slow, fixed, "slow_step.py", "fixed_step.py", lineterm="")
    before, after = (
        SlowScript(LADDER[: LADDER.index(fix) + more]).pipeline.but(steps=STEPS) for more in (0, 1)
    )
    knobs = script(after, before=before)
    if knobs.startswith("---"):
        lines.append(str(knobs))
    return Script("\n".join(lines).rstrip() + "\n")
