"""A loop that is not ours as a Run: what `lk.watch` and a framework's callback share."""

from __future__ import annotations

import os

from labkit.api import Run
from labkit.process import folders
from labkit.watching import run_folders
from labkit.watching.recorder import Recorder


class LoopRecorder:
    """Records a loop that is not ours; `.run` is the Run so far."""

    _recorder: Recorder | None = None
    _run: Run | None = None

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the loop has begun."""
        if self._run is None or self._recorder is None:
            raise RuntimeError("nothing is recorded yet: iterate the watch, or trainer.train().")
        if not self._recorder.closed:
            self._recorder.flush()
        return self._run

    def begin(self, loader: object, place: tuple[str, int] | None = None) -> Recorder:
        """Begin a record; `place` is the file and line of the loop."""
        folder = run_folders.new_folder(os.getpid()) or folders.new_run()
        self._recorder = Recorder(folder, loader, place)
        self._run = Run(folder, process=self._recorder)
        return self._recorder

    def close(self, error: BaseException | None = None) -> None:
        """End the record; only needed where an exception, `error`, ended the training."""
        if self._recorder is not None:
            self._recorder.close(error)
