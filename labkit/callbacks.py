"""A training loop that is a framework's, as a Run: what its callbacks have in common.

A step lasts until the logging, evaluating and saving after it; time between epochs is left out.
"""

from __future__ import annotations

import contextlib

from labkit.bench.device_clock import Mark
from labkit.process import folders
from labkit.process.events import now_ns
from labkit.results.run import Run
from labkit.watching.hangs import HangWatch
from labkit.watching.passes import IN_BODY, WAITING
from labkit.watching.recorder import Recorder


class StepRecorder:
    """Records steps as a framework's callbacks tell of them; `.run` is the Run so far."""

    def __init__(self):
        self._recording: Recorder | None = None  # while the training goes on
        self._run: Run | None = None
        self._open = contextlib.ExitStack()  # what ends with the record
        self._step: tuple[int, int, Mark | None] | None = None  # asked, ready (ns), on the device
        # Samples and bytes of that step, and its end there
        self._issued: tuple[int, int, Mark | None] | None = None
        self._asked = 0  # ns: when the batches of the next step were asked for

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._run is None:
            raise RuntimeError("nothing has been recorded yet: train first, trainer.train().")
        return self._run

    def begin(self, loader: object, model: object = None) -> None:
        """Begin a record, before the first batch is asked for; `model` is who trains on it."""
        self.close()
        recording = Recorder(folders.new_run(), loader, model)
        self._recording = recording
        self._run = Run(recording.folder, process=recording)
        self._issued = None
        self._open.enter_context(recording.recording(loader))
        self._open.enter_context(HangWatch([recording.folder]))
        recording.start_telemetry()
        self._asked = now_ns()

    def epoch(self) -> None:
        """Begin a pass over the data."""
        if self._recording is not None:
            self._end_epoch(self._recording)
            self._recording.begin_epoch(now_ns())
            self._asked = now_ns()

    def ready(self) -> None:
        """The batches of a step are here: what came before it is over."""
        recording = self._recording
        if recording is not None:
            self._settle(recording)
            start = None if recording.clock is None else recording.clock.mark()
            ready = now_ns()
            self._step = (self._asked, ready, start)
            recording.note(IN_BODY, ready)

    def issued(self, samples: int, batch_bytes: int = 0) -> None:
        """A step of so many samples, and bytes if known, has been issued."""
        recording = self._recording
        if recording is not None and self._step is not None:
            self._asked = now_ns()
            end = None if recording.clock is None else recording.clock.mark()
            self._issued = (samples, batch_bytes, end)
            recording.note(WAITING, self._asked)

    def over(self, loss: float | None = None) -> None:
        """Something that follows a step is done, such as logging its loss."""
        if self._recording is not None and self._issued is not None and loss is not None:
            self._recording.losses[self._recording.next] = float(loss)
        self._asked = now_ns()

    def close(self, how: str = "left early", error: BaseException | None = None) -> None:
        """End the record; only needed after a training that an exception ended: `error`."""
        recording = self._recording
        if recording is not None:
            self._end_epoch(recording)
            self._open.close()
            recording.end_pass("failed" if error else how, error)
            recording.close()
            self._recording = None

    def _end_epoch(self, recording: Recorder) -> None:
        self._settle(recording)
        if recording.epoch >= 0:
            recording.trains = True
            recording.write_pass(self._asked)

    def _settle(self, recording: Recorder) -> None:
        """Record the step that is over."""
        if self._step is not None and self._issued is not None:
            asked, ready, start = self._step
            samples, batch_bytes, end = self._issued
            self._issued = None
            recording.take([(asked, ready, self._asked, samples, batch_bytes, start, end)])
