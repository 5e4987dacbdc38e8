"""The reader's own step in the place of the bench's training.

Where none is given the loop only takes the batches: then nothing is busy, and what is measured is
the loader alone.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from labkit.bench.batch_contents import Batch
from labkit.bench.compiling import compile_in_place
from labkit.bench.formats import DTYPES
from labkit.bench.models import set_layout
from labkit.spec import Job

NO_LOSS = torch.tensor(float("nan"))
UNUSED = torch.empty(0)  # in the place of labels, which a reader's step has in its batch


class OwnStep:
    """The reader's step, or nothing, in the place of the bench's own Trainer."""

    side_stream = None

    def __init__(
        self,
        step: Callable[..., object] | None,
        model: nn.Module | Callable[[], nn.Module] | None,
        optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer] | None,
        job: Job,
    ):
        """`model` and `optimizer` may also be functions that make them."""
        self.job = job
        self.device = torch.device(job.device)
        job.xray = job.xray and step is not None
        if model is not None and not isinstance(model, nn.Module):
            model = model().to(self.device)
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            if model is None:
                raise ValueError("optimizer updates a model's parameters: give model too.")
            optimizer = optimizer(model.parameters())
        self.step = step
        self.given = (model, optimizer) if step is not None and _takes(step) > 1 else ()
        self.given_model: nn.Module | None = model
        self.model = nn.Identity() if model is None else model
        self.optimizer: Optimizer | None = optimizer

    def set_up(self, one_batch: Callable[[], Batch]) -> None:
        """Do what the job's knobs say to the model and its optimizer, and try a step."""
        if self.given_model is not None:
            if self.job.channels_last:
                set_layout(self.given_model, torch.channels_last)
            if self.optimizer is not None and self.job.fused_optimizer:
                _fuse(self.optimizer)
            self._check_and_compile(one_batch())
        torch.manual_seed(self.job.seed)

    def to_device(self, images: Batch, labels: torch.Tensor, /) -> tuple[Batch, torch.Tensor]:
        """Return the batch as it is: copying it is the step's business."""
        return images, labels

    def compute(self, images: Batch, _counted: torch.Tensor, /, update: bool) -> torch.Tensor:
        """Do the reader's step on a batch; return its loss, NaN where it returns none."""
        if self.step is None:
            return NO_LOSS
        dtype = DTYPES.get(self.job.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            loss = self.step(*self.given, images)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return loss.detach().float().reshape(())  # as (1,) it would not fit the recorder's slot
        return torch.tensor(float(loss)) if isinstance(loss, (int, float)) else NO_LOSS

    def after_step(self) -> None:
        """Go on."""

    def _check_and_compile(self, batch: Batch) -> None:
        """Do a step to see that the model is in it, compiled where the job says so; undo it."""
        optimizer = self.optimizer
        kept = copy.deepcopy((self.model.state_dict(), optimizer and optimizer.state_dict()))
        called: list[bool] = []
        hook = self.model.register_forward_pre_hook(lambda *_: called.append(True))
        self.compute(batch, UNUSED, update=True)
        hook.remove()
        if not called:
            raise ValueError(
                "step did not call the model that was given: write it as "
                "step(model, optimizer, batch)."
            )
        if self.job.compile:
            compile_in_place(self.model, self.job.compile)
            for _ in range(3):  # CUDA graphs are recorded in the second call, replayed in the third
                self.compute(batch, UNUSED, update=True)
        model_state, optimizer_state = kept
        self.model.load_state_dict(model_state)
        if optimizer is not None and optimizer_state is not None:
            optimizer.state.clear()
            optimizer.load_state_dict(optimizer_state)
            optimizer.zero_grad(set_to_none=True)


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer update all weights in one pass; raise ValueError where it has none."""
    for group in optimizer.param_groups:
        if "fused" not in group:
            raise ValueError(f"{type(optimizer).__name__} has no fused version.")
        group.update(fused=True, foreach=False)
    for weights, state in optimizer.state.items():
        if isinstance(step := state.get("step"), torch.Tensor):  # kept in RAM until it is fused
            state["step"] = step.to(weights.device)


def _takes(step: Callable[..., object]) -> int:
    """Return how many arguments a step needs: (batch) or (model, optimizer, batch)."""
    parameters = inspect.signature(step).parameters.values()
    needed = sum(each.default is each.empty for each in parameters)
    if needed not in (1, 3):
        raise ValueError("step takes (batch), or (model, optimizer, batch).")
    return needed
