"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has the iterators of torch's DataLoader hooked when that is
imported: each loader that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would
give it. A script that feeds itself without one gets a run whose steps are those of its optimizer.
"""

from __future__ import annotations

import atexit
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from labkit.stamps.interrupts import OwnErrors
from labkit.watching.hooked_passes import HookedPasses
from labkit.watching.passes import Pass
from labkit.watching.script_loops import WatchedScript

if TYPE_CHECKING:
    import torch

PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded


SCRIPT = WatchedScript()


def install(module: ModuleType) -> None:
    """Hook a module of DataLoaders, or torch's of optimizers, when it has just been loaded."""
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is None:
        steps = OptimizerSteps(SCRIPT)
        # torch.compile may trace what is hooked: not this
        untraced = sys.modules["torch"]._disable_dynamo(lambda *given: steps(*given))
        module.register_optimizer_step_post_hook(untraced)
    else:
        SCRIPT.passes = HookedPasses(SCRIPT, iterators)
    atexit.unregister(SCRIPT.close)
    atexit.register(SCRIPT.close)


class OptimizerSteps:
    """The steps of a loop without a DataLoader: from one `optimizer.step()` to the next.

    It also tells which of the loops with one train.
    """

    def __init__(self, script: WatchedScript):
        self.script = script
        self.seen = 0  # steps
        self.first_id: int | None = None  # of the optimizer that made the first
        self.recorded: Pass | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        if self.script.loops and self.recorded is None:
            self.script.note_training(optimizer)
            return  # a DataLoader says more
        self.first_id = self.first_id or id(optimizer)
        if self.first_id != id(optimizer) or not self.script.is_here:
            return  # of several optimizers the first one counts
        if _is_capturing():
            return  # into a CUDA graph: an event that is asked now would break the capture
        self.seen += 1
        with OwnErrors():
            if self.seen == PATIENCE:
                loop = self.script.begin(self, None)
                if loop is None:
                    return
                recorder = loop.recorder
                recorder.trained_by(optimizer)
                self.recorded = Pass(recorder)
            if self.recorded is not None:
                self.recorded.ask()
                self.recorded.answer(None)


def _is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph."""
    cuda = sys.modules["torch"].cuda  # without a context, a CPU build refuses the second question
    return cuda.is_initialized() and cuda.is_current_stream_capturing()
