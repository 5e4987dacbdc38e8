"""Lightning's Trainer as a Run: `Trainer(..., callbacks=[lightning.Recorder()])`.

Needs the extra `gpu-labkit[lightning]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.callbacks import LoopRecorder

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError as error:
        raise ImportError(
            f"labkit.lightning needs lightning ({error}): pip install 'gpu-labkit[lightning]'"
        ) from None


class Recorder(LoopRecorder, Callback):
    """Records what a Lightning Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one batch, with the callbacks and validations after it. What lies between epochs is
    left out; rank 0 records.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a record."""
        if trainer.is_global_zero:
            self.begin(trainer.train_dataloader, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the record."""
        self.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the record of a training that failed."""
        self.close(exception)
