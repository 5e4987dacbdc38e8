"""Hugging Face's Trainer as a Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `gpu-labkit[hf]`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING

import torch

from labkit.callbacks import StepRecorder
from labkit.instruments.batch_contents import padding_of
from labkit.watching.batches import LOOK_EVERY

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import TrainerControl, TrainerState, TrainingArguments

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'gpu-labkit[hf]'"
    ) from None


class UncopiedHook:
    """A forward hook that no copy of its model takes along, be it pickled or a deep one."""

    def __init__(self, look: Callable[..., None]):
        self.look = look

    def __call__(self, *given: object) -> None:
        """Look at what the model is given."""
        self.look(*given)

    def __reduce__(self) -> tuple[object, ...]:
        # what takes anything and does nothing, also where there is no labkit
        return getattr, (contextlib.nullcontext(), "__exit__")


class Recorder(StepRecorder, TrainerCallback):
    """Records what a Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one optimizer step, with all the batches that it accumulates, and with the logging,
    evaluating and saving after it; what lies between epochs is left out. Losses are those that
    the Trainer logs: set `logging_steps=1`. Give each Trainer a Recorder of its own.
    """

    def __init__(self):
        super().__init__()
        self._batch = 0  # samples of a step
        self._samples = math.inf  # of a pass, where the dataset knows
        self._left = math.inf  # of this pass

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        train_dataloader: DataLoader | None = None,
        model: torch.nn.Module | None = None,
        **_more: object,
    ) -> None:
        """Begin a record, before the first batch is asked for."""
        if not state.is_world_process_zero:
            return
        self._batch = args.train_batch_size * args.gradient_accumulation_steps
        dataset = getattr(train_dataloader, "dataset", None)
        self._samples = len(dataset) if isinstance(dataset, Sized) else math.inf
        self.begin(train_dataloader, model)
        if model is not None:
            hook = model.register_forward_pre_hook(UncopiedHook(self._look), with_kwargs=True)
            self._open.callback(hook.remove)

    def _look(self, model: torch.nn.Module, _args: object, inputs: dict[str, torch.Tensor]) -> None:
        """Note how much of a training batch is padding.

        Reading a mask on a device waits for that device, so there only some are read.
        """
        if torch.compiler.is_compiling():  # or the hook would become a part of what is compiled
            return
        recorder = self._going_on
        tokens = inputs.get("input_ids")
        mask = inputs.get("attention_mask")
        if recorder is None or tokens is None or mask is None or not model.training:
            return
        if mask.is_cpu or recorder.steps.next % LOOK_EVERY == 0:
            recorder.batches.add_padding(padding_of((tokens.cpu(), mask.cpu())))

    def on_epoch_begin(self, *_args: object, **_more: object) -> None:
        """Begin a pass over the data."""
        self._left = self._samples
        self.epoch()

    def on_step_begin(self, *_args: object, **_more: object) -> None:
        """The batches of a step have arrived."""
        self.ready()

    def on_step_end(self, *_args: object, **_more: object) -> None:
        """A step has been issued; keep it until it is known whether its loss is logged."""
        count = int(min(self._batch, self._left))
        self._left -= count
        self.issued(count)

    def on_log(self, *_args: object, logs: dict[str, float] | None = None, **_more: object) -> None:
        """Keep the loss of the step that is over; the loader is asked only when this is done."""
        self.over(loss=(logs or {}).get("loss"))

    on_save = on_log

    def on_evaluate(self, *_args: object, **_more: object) -> None:
        """An evaluation that belongs to the step before it is done."""
        self.over(on_device=True)

    def on_train_end(self, *_args: object, **_more: object) -> None:
        """End the record."""
        self.close("exhausted")
