"""A training loop that is a framework's, as a Run: what its callbacks have in common.

A step lasts until the logging, evaluating and saving after it; time between epochs is left out.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import labkit
from labkit.bench.lines import in_workers
from labkit.bench.watch import Recorder
from labkit.process import folders
from labkit.process.events import NO_TOKENS, now_ns
from labkit.results.run import Run
from labkit.wiring import Later

flops = Later("labkit.bench.flops")


class Recording(Recorder):
    """A recording whose steps have losses, where the framework tells them."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.losses: dict[int, float] = {}
        self.tokens: dict[int, list[int]] = {}  # of a step, and the real ones of them

    def _add(self, i: int, t: tuple, samples: int, busy: tuple = ()) -> None:
        loss, (tokens, real) = self.losses.pop(i, math.nan), self.tokens.pop(i, NO_TOKENS)
        told = f"{loss:.9g}" if math.isfinite(loss) else "null"
        told += f',"tokens":[{tokens},{real}]' if tokens else ""
        super()._add(i, t, samples, busy, told)


class StepRecorder:
    """Records steps as a framework's callbacks tell of them; `.run` is the Run so far."""

    def __init__(self):
        self._recording: Recording | None = None
        self._run: Run | None = None
        self._workers = contextlib.ExitStack()
        self._row: tuple | None = None
        self._going, self._epoch, self._asked = False, 0, 0

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._recording is None:
            raise RuntimeError("nothing has been recorded yet: train first, trainer.train().")
        self._run = self._run or Run(self._recording.folder, process=self._recording)
        return self._run

    def begin(self, loader: Any, model: Any = None) -> None:
        """Begin a record, before the first batch is asked for; `model` is who trains on it."""
        self.close()
        self._recording = Recording(folders.new_run(), loader, labkit.__version__)
        self._recording.call = None if model is None else flops.FirstCall(model)
        self._run, self._going, self._row, self._epoch = None, True, None, 0
        self._workers.enter_context(in_workers(loader, self._recording.folder))
        self._recording.start_telemetry()
        self._asked = now_ns()

    def epoch(self) -> None:
        """Begin a pass over the data."""
        if self._going:
            self._settle()
            self._recording.log.write("epoch", n=self._epoch, step=self._recording.next)
            self._recording.sampler.start()
            self._epoch, self._asked = self._epoch + 1, now_ns()

    def ready(self) -> None:
        """The batches of a step are here: what came before it is over."""
        if self._going:
            clock, asked = self._recording.clock, self._asked
            self._settle()
            self._step = asked, now_ns(), None if clock is None else clock.mark()

    def issued(self, samples: int) -> None:
        """A step of so many samples has been issued."""
        if self._going:
            (asked, ready, start), self._asked = self._step, now_ns()
            end = None if start is None else self._recording.clock.mark()
            self._row = asked, ready, samples, start, end

    def over(self, loss: float | None = None) -> None:
        """Something that follows a step is done, such as logging its loss."""
        if self._going and self._row is not None and loss is not None:
            self._recording.losses[self._recording.next] = float(loss)
        self._asked = now_ns()

    def close(self, how: str = "left early") -> None:
        """End the record; only needed after a training that an exception ended."""
        if self._going:
            self._settle()
            self._workers.close()
            self._recording.flush()
            self._recording.end_pass(how)
            self._recording.close()
            self._going = False

    def _settle(self) -> None:
        if self._row is not None:
            (asked, ready, samples, start, end), self._row = self._row, None
            self._recording.take([(asked, ready, self._asked, samples, start, end)])
