"""Hugging Face's Trainer as a labkit Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `labkit[hf]` (transformers and accelerate); importing this module without it raises
an ImportError that says so. `lk.training_arguments(pipeline)` needs neither.
"""

from __future__ import annotations

import math
from typing import Any

import labkit
from labkit.bench.watch import Recorder as Recording
from labkit.process import folders
from labkit.process.events import now_ns
from labkit.results.run import Run

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'labkit[hf]'"
    ) from None


class Recorder(TrainerCallback):
    """Records what a Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one optimizer step, with all the batches that it accumulates. Waiting lasts from when
    the Trainer is through with its logging, evaluating and saving to when it has its batches; busy,
    on a GPU, until the device is through with the step. Logging and saving count as neither, and
    what lies between epochs is left out. Losses are those that the Trainer logs: set
    `logging_steps=1` for one a step. Give each Trainer a Recorder of its own.
    """

    def __init__(self):
        self._recording: LossRecording | None = None
        self._run: Run | None = None
        self._going, self._row = False, None

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._recording is None:
            raise RuntimeError("nothing has been recorded yet: call trainer.train() first.")
        self._run = self._run or Run(self._recording.folder, process=self._recording)
        return self._run

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a record, before the first batch is asked for."""
        self.close()
        if state.is_world_process_zero:
            loader = more.get("train_dataloader")
            self._recording = LossRecording(folders.new_run(), loader, labkit.__version__)
            self._run, self._going, self._row, self._epoch = None, True, None, 0
            self._count = args.train_batch_size * args.gradient_accumulation_steps
            data = getattr(loader, "dataset", None)
            self._samples = len(data) if hasattr(data, "__len__") else math.inf
            self._recording.start_telemetry()

    def on_epoch_begin(self, *_args: Any, **_more: Any) -> None:
        """Begin a pass over the data."""
        if self._going:
            self._settle()
            self._recording.log.write("epoch", n=self._epoch, step=self._recording.next)
            self._epoch, self._left, self._asked = self._epoch + 1, self._samples, now_ns()

    def on_step_begin(self, *_args: Any, **_more: Any) -> None:
        """The batches of a step are here."""
        if self._going:
            asked, clock = self._asked, self._recording.clock
            self._settle()
            self._step = asked, now_ns(), None if clock is None else clock.mark()

    def on_step_end(self, *_args: Any, **_more: Any) -> None:
        """A step has been issued; keep it until it is known whether its loss is logged."""
        if self._going:
            (asked, ready, start), count = self._step, min(self._count, self._left)
            self._left -= count
            end = None if start is None else self._recording.clock.mark()
            self._asked = now_ns()
            self._row = asked, ready, self._asked, count, start, end

    def on_log(self, *_args: Any, logs: dict | None = None, **_more: Any) -> None:
        """Keep the loss of the step that is over; the loader is asked only when this is done."""
        if self._going and self._row is not None and "loss" in (logs or {}):
            self._recording.losses[self._recording.next] = float(logs["loss"])
        self._asked = now_ns()

    on_evaluate = on_save = on_log

    def on_train_end(self, *_args: Any, **_more: Any) -> None:
        """End the record."""
        self.close("exhausted")

    def close(self, how: str = "left early") -> None:
        """End the record; only needed after a training that an exception ended."""
        if self._going:
            self._settle()
            self._recording.flush()
            self._recording.end_pass(how)
            self._recording.close()
            self._going = False

    def _settle(self) -> None:
        row, self._row = self._row, None
        if row is not None:
            self._recording.take([row])


class LossRecording(Recording):
    """A recording whose steps have losses: those that the Trainer logged."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.losses: dict[int, float] = {}

    def _add(self, i: int, t: tuple, samples: int, busy: tuple | None = None) -> None:
        super()._add(i, t, samples, busy)
        loss = self.losses.pop(i, math.nan)
        if math.isfinite(loss):
            self.lines[-1] = self.lines[-1].replace('"loss":null', f'"loss":{loss:.7g}')
