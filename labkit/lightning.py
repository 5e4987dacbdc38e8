"""Lightning's Trainer as a Run: `Trainer(..., callbacks=[lightning.Recorder()])`.

Needs the extra `gpu-labkit[lightning]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.callbacks import StepRecorder

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError as error:
        raise ImportError(
            f"labkit.lightning needs lightning ({error}): pip install 'gpu-labkit[lightning]'"
        ) from None


class Recorder(StepRecorder, Callback):
    """Records what a Lightning Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one batch, with the other callbacks and validations after it: put it last in the
    list. What lies between epochs is left out; rank 0 records.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a record."""
        if trainer.is_global_zero:
            self.begin(trainer.train_dataloader, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a pass over the data."""
        self.epoch()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """A batch has arrived."""
        if recorder := self._going_on:
            batches = recorder.batches
            if not recorder.steps.next:
                batches.learn(batch)
            self.ready(batches.count(batch), batches.measure(batch))

    def on_train_batch_end(self, *_args: object, **_more: object) -> None:
        """A step has been issued."""
        self.issued()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation that belongs to the step before it is done."""
        self.over(on_device=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the record."""
        self.close("exhausted")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the record of a training that failed."""
        self.close(error=exception)
