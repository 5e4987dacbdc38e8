"""A framework's training loop as a Run: what the callbacks for all frameworks share.

A step lasts until the logging, evaluating and saving after it; time between epochs is left out.
"""

from __future__ import annotations

import contextlib

from labkit.process import folders
from labkit.process.events import now_ns
from labkit.results.run import Run
from labkit.watching.batches import BatchFacts
from labkit.watching.hangs import HangWatch
from labkit.watching.log_words import Ending
from labkit.watching.recorder import Recorder
from labkit.watching.step_timer import StepTimer


class StepRecorder:
    """Records steps as a framework's callbacks tell of them; `.run` is the Run so far."""

    def __init__(self):
        self._recorder: Recorder | None = None  # while the training goes on
        self._timer: StepTimer | None = None  # and as long as that
        self._run: Run | None = None
        self._open = contextlib.ExitStack()  # what ends with the record

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._run is None:
            raise RuntimeError("nothing has been recorded yet: train first, trainer.train().")
        return self._run

    @property
    def _batches(self) -> BatchFacts | None:
        """What is known of the batches; None while nothing is recorded."""
        return None if self._recorder is None else self._recorder.batches

    def begin(self, loader: object, model: object = None) -> None:
        """Begin a record, before the first batch is asked for; `model` is the one trained."""
        self.close()
        recorder = Recorder(folders.new_run(), loader, model)
        timer = recorder.step_timer()
        self._run = Run(recorder.folder, process=recorder)
        self._recorder = recorder
        self._timer = timer
        self._open.enter_context(recorder.probes.recorded(loader))
        self._open.enter_context(HangWatch(lambda: [recorder.folder]))
        recorder.probes.start_telemetry()
        timer.restart(now_ns())

    def epoch(self) -> None:
        """Begin a pass over the data."""
        if self._recorder is not None and self._timer is not None:
            _end_epoch(self._recorder, self._timer)
            self._recorder.begin_epoch(now_ns())
            self._timer.restart(now_ns())

    def ready(self) -> None:
        """The batches of a step have arrived, so the step before it is over."""
        if self._timer is not None:
            self._timer.hand_over()
            self._timer.begin(now_ns())

    def issued(self, samples: int, batch_bytes: int = 0) -> None:
        """A step of so many samples, and bytes if known, has been issued."""
        timer = self._timer
        if timer is not None and timer.ready:
            timer.holds(samples, batch_bytes)
            now = now_ns()
            timer.end(now)
            timer.ask(now)

    def over(self, loss: float | None = None, on_device: bool = False) -> None:
        """Something that follows a step is done, such as logging its loss.

        `on_device` where the device has worked for it, as in an evaluation.
        """
        if self._timer is not None:
            self._timer.extend(now_ns(), on_device, loss)

    def close(self, how: Ending = "left early", error: BaseException | None = None) -> None:
        """End the record; only needed where an exception, `error`, ended the training."""
        recorder = self._recorder
        if recorder is not None and self._timer is not None:
            _end_epoch(recorder, self._timer)
            self._open.close()
            recorder.end_pass("failed" if error else how, error)
            recorder.close()
            self._recorder = None
            self._timer = None


def _end_epoch(recorder: Recorder, timer: StepTimer) -> None:
    timer.hand_over()
    recorder.write_pass(timer.asked, trains=True)
