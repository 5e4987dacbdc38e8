"""Lightning's Trainer as a Run: `Trainer(..., callbacks=[lightning.Recorder()])`.

Needs the extra `gpu-labkit[lightning]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.callbacks import LoopRecorder
from labkit.watching.passes import Pass

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

    A step is one batch; a validation behind it, and what lies between epochs, is left out. Rank 0
    records.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a record."""
        self._pass: Pass | None = None
        if trainer.is_global_zero:
            self.begin(trainer.train_dataloader, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a pass over the data."""
        recorder = self._recorder
        if recorder is not None and recorder.has_room():
            self._pass = Pass(recorder)
            self._pass.ask()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """A batch has arrived."""
        if self._pass is not None:
            self._pass.answer(batch)

    def on_train_batch_end(self, *_args: object, **_more: object) -> None:
        """A step has been issued, or a validation behind it: the next batch is asked for."""
        if self._pass is not None:
            self._pass.ask()

    on_validation_end = on_train_batch_end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the record."""
        if self._pass is not None:
            self._pass.end("exhausted")
        self.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the record of a training that failed."""
        self.close(exception)
