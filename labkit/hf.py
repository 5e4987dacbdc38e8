"""Hugging Face's Trainer as a Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `gpu-labkit[hf]`.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from labkit.view.watch_live import LoopRecorder
from labkit.watching import hook

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'gpu-labkit[hf]'"
    ) from None


class Recorder(LoopRecorder, TrainerCallback):
    """Records what a Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one batch, with the logging, evaluating and saving after it; what lies between epochs
    is left out. Give each Trainer a Recorder of its own.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Record the batches that are asked for from now on, as `labkit watch` would."""
        if state.is_world_process_zero:
            self.close()
            hook.install_now()
            place = hook.users_place(traceback.walk_stack(sys._getframe()))
            recorder = self.begin(more.get("train_dataloader"), place)
            hook.SCRIPT.loops.append(recorder)
            recorder.ends.callback(hook.SCRIPT.loops.remove, recorder)

    def on_train_end(self, *_args: object, **_more: object) -> None:
        """End the record."""
        self.close()
