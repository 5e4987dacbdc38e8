"""The slow script of notebook 08: which of its bottlenecks are fixed, and what that sets.

Here are its spec and settings; `slow_script_train.py` puts the lines of `slow_step.py` and
`fixed_step.py` into the bench's own loop.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.api import Run
from labkit.instruments.card_formats import too_old_for
from labkit.knobs import check_names
from labkit.orders import Order
from labkit.results.hardware import machine
from labkit.results.script import Script, script
from labkit.spec import Pipeline, quick_run

# In the order in which the bottleneck moves; the course's notebook 08 climbs them as a ladder
# {name: the functions of slow_step.py and fixed_step.py that it changes}
FIXES = {
    "data": (),  # loader workers prepare batches beside the training loop
    "items": ("open_manifest", "load_item"),  # nothing parsed twice, no loop over pixels
    "copies": ("pack", "to_device"),  # one pinned block of bytes a batch for lines of floats
    # whole-batch operations for Python loops, no .item() in every step
    "launches": ("normalize", "cross_entropy"),
    "precision": (),  # autocast to 16 bits (bf16; fp16 on cards older than Ampere)
    "memory": ("Activation",),  # fused SiLU and optimizer, channels-last: fewer passes over memory
}
LADDER = tuple(FIXES)
PREFETCH = 2
MOST_WORKERS = 8  # enough for any card once items are lean
STEPS = 21  # at least: an x-ray needs 20, a verdict 12 after the warm-up
QUICK_STEPS = 6  # of a quick run, which is not judged


@dataclass(frozen=True)
class SlowScript:
    """One stage of the slow script."""

    fixes: Sequence[str] = ()  # names of `FIXES`

    def __post_init__(self) -> None:
        check_names(self.fixes, FIXES, "fix")

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
        data, copies, precision, memory = (
            fix in self.fixes for fix in ("data", "copies", "precision", "memory")
        )
        return Pipeline(
            io_ms=0.0,
            augment=0,
            image_px=48,
            model="cnn",
            width=None if on_gpu else 36,
            depth=None if on_gpu else 5,
            seconds=100.0,
            # What is prefetched at the start is warm-up, of which a run leaves out a third at most
            steps=QUICK_STEPS if quick_run() else max(STEPS, 3 * PREFETCH * workers),
            batch_size=48 if on_gpu else 16,
            num_workers=workers if data else 0,
            prefetch_factor=PREFETCH if data else None,
            pin_memory=copies and on_gpu,
            non_blocking=copies and on_gpu,
            precision=half if precision else "fp32",
            channels_last=memory,
            fused_optimizer=memory,
            # On a CPU waits and copies are on top until then, which the steps' own stamps show
            xray=copies or on_gpu,
        )

    def to_spec(self) -> Order:
        """Return the pipeline, and what puts the script's lines into it."""
        fixed = " ".join(name for fix in self.fixes for name in FIXES[fix])
        fault = f"labkit.course.slow_script_train:plant:{fixed}"
        return {"pipeline": self.pipeline.to_dict(), "fault": fault}


def slow_script(*fixes: str, wait: bool = True, before: Run | None = None) -> Run:
    """Run the deliberately slow training script with some of its bottlenecks fixed.

    `fixes` are names of `FIXES`, others raise ValueError; with none of them the script is at its
    slowest. `wait` and `before` are as in `lk.run`.
    """
    from labkit.view import running

    return running.start(slow_script, SlowScript(fixes), wait, before)


def changed_code(fix: str) -> Script:
    """Return what a fix changes, as a unified diff in plain PyTorch.

    First the functions of `slow_step.py` against those of `fixed_step.py`, then what the knobs
    change in the training script that `lk.script` writes.
    """
    from labkit.course import fixed_step, slow_step  # they import torch

    lines = []
    for name in FIXES[fix]:
        sources = (inspect.getsource(getattr(step, name)) for step in (slow_step, fixed_step))
        slow, fixed = map(str.splitlines, sources)
        lines += difflib.unified_diff(slow, fixed, "slow_step.py", "fixed_step.py", lineterm="")
    before, after = (
        SlowScript(LADDER[: LADDER.index(fix) + more]).pipeline.but(steps=STEPS) for more in (0, 1)
    )
    knobs = script(after, before=before)
    if knobs.startswith("---"):
        lines.append(knobs)
    return Script("\n".join(lines))
