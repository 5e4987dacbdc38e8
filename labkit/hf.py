"""Hugging Face's Trainer as a labkit Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `labkit[hf]` (transformers and accelerate); importing this module without it raises
an ImportError that says so. `lk.training_arguments(pipeline)` needs neither.
"""

from __future__ import annotations

import math
from typing import Any

from labkit.callbacks import StepRecorder

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'labkit[hf]'"
    ) from None


class Recorder(StepRecorder, TrainerCallback):
    """Records what a Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one optimizer step, with all the batches that it accumulates, and with the logging,
    evaluating and saving behind it; busy, on a GPU, until the device is through with the step.
    What lies between epochs is left out. Losses are those that the Trainer logs: set
    `logging_steps=1` for one a step. Give each Trainer a Recorder of its own.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a record, before the first batch is asked for."""
        self.close()
        if state.is_world_process_zero:
            loader = more.get("train_dataloader")
            self._count = args.train_batch_size * args.gradient_accumulation_steps
            data = getattr(loader, "dataset", None)
            self._samples = len(data) if hasattr(data, "__len__") else math.inf
            self.begin(loader, more.get("model"))

    def on_epoch_begin(self, *_args: Any, **_more: Any) -> None:
        """Begin a pass over the data."""
        if self._going:
            self._left = self._samples
            self.epoch()

    def on_step_begin(self, *_args: Any, **_more: Any) -> None:
        """The batches of a step are here."""
        self.ready()

    def on_step_end(self, *_args: Any, **_more: Any) -> None:
        """A step has been issued; keep it until it is known whether its loss is logged."""
        if self._going:
            count = min(self._count, self._left)
            self._left -= count
            self.issued(count)

    def on_log(self, *_args: Any, logs: dict | None = None, **_more: Any) -> None:
        """Keep the loss of the step that is over; the loader is asked only when this is done."""
        self.over((logs or {}).get("loss"))

    on_evaluate = on_save = on_log

    def on_train_end(self, *_args: Any, **_more: Any) -> None:
        """End the record."""
        self.close("exhausted")
