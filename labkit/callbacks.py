"""A framework's training loop as a Run: what the callbacks for all frameworks share."""

from __future__ import annotations

import os
import sys
import traceback

from labkit.api import Run
from labkit.process import folders
from labkit.watching import hook, run_folders
from labkit.watching.recorder import Recorder


class LoopRecorder:
    """Records the loop that a framework runs; `.run` is the Run so far."""

    def __init__(self):
        self._recorder: Recorder | None = None
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the training has begun."""
        if self._run is None or self._recorder is None:
            raise RuntimeError("nothing has been recorded yet: train first, trainer.train().")
        if not self._recorder.closed:
            self._recorder.flush()
        return self._run

    def begin(self, loader: object, model: object) -> Recorder:
        """Begin a record; `model` is the one trained."""
        self.close()
        folder = run_folders.new_folder(os.getpid()) or folders.new_run()
        place = hook.users_place(traceback.walk_stack(sys._getframe(1)))
        self._recorder = Recorder(folder, loader, model, place)
        self._run = Run(folder, process=self._recorder)
        return self._recorder

    def close(self, error: BaseException | None = None) -> None:
        """End the record; only needed where an exception, `error`, ended the training."""
        if self._recorder is not None:
            self._recorder.close(error)
