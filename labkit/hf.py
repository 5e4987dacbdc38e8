"""Hugging Face's Trainer as a Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `gpu-labkit[hf]`.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import TYPE_CHECKING

from labkit.callbacks import StepRecorder

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader
    from transformers import TrainerControl, TrainerState, TrainingArguments

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'gpu-labkit[hf]'"
    ) from None


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

    def on_epoch_begin(self, *_args: object, **_more: object) -> None:
        """Begin a pass over the data."""
        self._left = self._samples
        self.epoch()

    def on_step_begin(self, *_args: object, **_more: object) -> None:
        """The batches of a step have arrived."""
        count = int(min(self._batch, self._left))
        self._left -= count
        self.ready(count)

    def on_step_end(self, *_args: object, **_more: object) -> None:
        """A step has been issued."""
        self.issued()

    def on_log(self, *_args: object, logs: dict[str, float] | None = None, **_more: object) -> None:
        """Keep the loss of the step that is over; the loader is asked only when this is done."""
        self.over((logs or {}).get("loss", math.nan))

    on_save = on_log

    def on_evaluate(self, *_args: object, **_more: object) -> None:
        """An evaluation that belongs to the step before it is done."""
        self.over(on_device=True)

    def on_train_end(self, *_args: object, **_more: object) -> None:
        """End the record."""
        self.close("exhausted")
