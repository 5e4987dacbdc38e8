"""A framework's training loop as a Run: what the callbacks for all frameworks share.

A step lasts until the logging, evaluating and saving after it; time between epochs is left out.
"""

from __future__ import annotations

import math

from labkit.api import Run
from labkit.process import folders
from labkit.stamps.events import now_ns
from labkit.watching.recorder import Recorder


class StepRecorder:
    """Records steps as a framework's callbacks tell of them; `.run` is the Run so far."""

    def __init__(self):
        self._recorder: Recorder | None = None  # while the training goes on
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._run is None:
            raise RuntimeError("nothing has been recorded yet: train first, trainer.train().")
        return self._run

    @property
    def _going_on(self) -> Recorder | None:
        """What records the steps; None while none is recorded, and once the log is full."""
        recorder = self._recorder
        return recorder if recorder is not None and recorder.has_room() else None

    def begin(self, loader: object, model: object = None) -> None:
        """Begin a record, before the first batch is asked for; `model` is the one trained."""
        self.close()
        recorder = Recorder(folders.new_run(), loader, model)
        self._run = Run(recorder.folder, process=recorder)
        self._recorder = recorder
        recorder.ends.enter_context(recorder.recorded(loader))
        recorder.start_telemetry()

    def epoch(self) -> None:
        """Begin a pass over the data."""
        if recorder := self._going_on:
            recorder.begin_pass(now_ns())
            recorder.trains = True
            recorder.steps.ask(now_ns())

    def ready(self, samples: int, batch_bytes: int = 0) -> None:
        """The batches of a step have arrived: so many samples, and bytes if known."""
        if recorder := self._going_on:
            recorder.hand_over()  # the step before is over
            recorder.steps.begin(now_ns(), samples, batch_bytes)

    def issued(self) -> None:
        """A step has been issued."""
        recorder = self._going_on
        if recorder is not None and recorder.steps.ready:
            now = now_ns()
            recorder.steps.end(now)
            recorder.steps.ask(now)

    def over(self, loss: float = math.nan, on_device: bool = False) -> None:
        """Something that follows a step is done, such as logging its loss.

        `on_device` where the device has worked for it, as in an evaluation.
        """
        if recorder := self._going_on:
            recorder.steps.extend(now_ns(), on_device, loss)

    def close(self, how: str = "left early", error: BaseException | None = None) -> None:
        """End the record; only needed where an exception, `error`, ended the training."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None and not recorder.closed:
            recorder.end_pass("failed" if error else how, error)
            recorder.close()
