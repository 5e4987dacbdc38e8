"""`lk.watch(loader)`: your own training loop, with one line changed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from labkit.api import Run
from labkit.instruments.hangs import say
from labkit.process import folders, launcher
from labkit.view.display import Display, loop_summary, remember
from labkit.watching import run_folders
from labkit.watching.passes import StandIn, WatchedIterator, check_iterable
from labkit.watching.recorder import Recorder

TO_TRY = "to try settings on it: lk.tune(loader, step=...)"
OPEN_MOST = 8  # watches kept open: the loop's, its validation's, and some for generators
EMPTY = (
    "watch: the loader gave no batch. If it is an iterator or a generator, it has been used up: "
    "make a new one for each pass, or watch the loader itself, not iter(loader)."
)

_open: list[Watch] = []  # the oldest first; each is the one watch of its loader


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


class Watch(StandIn, LoopRecorder):
    """A loader under watch: iterate it, or give it to a trainer, as you would the loader.

    All passes over it are one Run, which ends with the notebook cell, the script or `close()`.
    """

    _display: Display | None = None

    def __init__(self, loader: Any, live: bool = True, made: tuple = ()):
        """Watch `loader`; `made` is where that was done, and whose batches it has."""
        super().__init__(loader)
        self.live = live
        self.made = made

    def __iter__(self) -> Iterator[Any]:
        recorded = None
        try:
            recorder = self._recorder
            if recorder is None or self not in _open or recorder.pid != os.getpid():
                recorder = self._begin()
            if recorder.has_room():
                recorded = WatchedIterator(recorder)
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
        return recorded.through(self.loader) if recorded else iter(self.loader)

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __reduce__(self) -> tuple[type[Watch], tuple[object, bool]]:
        return Watch, (self.loader, self.live)

    def _begin(self) -> Recorder:
        """Begin a Run."""
        launcher.end_standby()  # it might still be importing torch, beside this loop
        is_of_script = run_folders.of_script is not None
        recorder = self.begin(self.loader)
        is_shown = self.live and not is_of_script and run_folders.own_rank() == "0"
        self._display = Display() if is_shown else None
        recorder.each_beat = self._beat
        while len(_open) >= OPEN_MOST:
            _open[0].close()
        _open.append(self)
        _end_with_the_cell()
        return recorder

    def _beat(self, is_over: bool) -> None:
        """Show how far the loop is; `is_over`: a pass has ended."""
        if self._recorder is None or self._display is None:
            return
        show = self._display.final if is_over else self._display.line
        try:
            show(progress_line(self._recorder))
        except Exception as error:  # a closed terminal must not end the recording
            self._display = None
            say(f"display stopped: {type(error).__name__}: {error}")

    def close(self, error: BaseException | None = None) -> None:
        """End the Run and show its diagnosis; `error` is what ended the loop, where one did."""
        recorder = self._recorder
        if recorder is None or self not in _open:
            return
        _open.remove(self)
        if recorder.pid != os.getpid():
            return
        recorder.close(error)
        if self._display is not None:
            leave(self._display, self.run)
        self._display = None


def watch(loader: Any, *, live: bool = True) -> Watch:
    """Watch a training loop through its loader: `for batch in lk.watch(loader): ...`.

    The same batches, in the same order; no device is synchronised and no random number drawn. It
    measures how long the loop waits for each batch, and how long its body takes: on a GPU until
    the device is through with it, copies to it included. Watching the same loader again, or one
    made anew of the same dataset on the same line, continues its `.run`. The last is
    `lk.watch.last`.

    Args:
        loader: Any iterable of batches: a DataLoader, a list, a generator (good for one pass).
        live: Show a line while the loop runs and the diagnosis at its end; False only records.
    """
    check_iterable(loader, "lk.watch")
    caller = sys._getframe(1)
    made = (caller.f_code, caller.f_lineno, id(getattr(loader, "dataset", loader)))
    watched = loader if isinstance(loader, Watch) else None
    for each in _open:
        is_iterated = each._recorder and each._recorder.going
        if each.loader is loader or (each.made == made and not is_iterated):
            watched = each
            each.loader = loader
    if watched is None:
        watched = Watch(loader, live, made)
    return remember(watch, watched)


def progress_line(recorder: Recorder) -> str:
    """Say in one line how far a pass is and what has been measured."""
    steps = recorder.steps
    if steps.next == recorder.first_step and recorder.how == "exhausted":
        return EMPTY
    text = f"epoch {recorder.epoch + 1}, step {steps.next - recorder.first_step}"
    if steps.wall_ns:
        rate = f"{steps.samples / steps.wall_ns * 1e9:,.0f} {recorder.batches.unit}/s"
        text += f" · {rate} · the loop waits for data {steps.wait_ns / steps.wall_ns:.0%}"
    return text


def leave(display: Display, run: Run) -> None:
    """Leave the run and its diagnosis; in a notebook its figure, where the line was."""
    if run.throughput is None:
        display.final(repr(run))
        return
    found = run.diagnose()
    if display.handle is None:
        display.final(loop_summary(run.data, found, TO_TRY))
        return
    from IPython.display import display as show

    display.final("", run.plot())
    show(found, run.lines)


def close_all(error: BaseException | None = None) -> None:
    """End open Runs, with the `error` that ended the cell or the script, where one did."""
    for each in list(_open):
        with contextlib.suppress(Exception):
            each.close(error)


@functools.cache  # once
def _end_with_the_cell() -> None:
    """See to it that open Runs end with the notebook cell, or else with the script."""
    ipython = sys.modules.get("IPython")
    if shell := ipython and ipython.get_ipython():
        shell.events.register(
            "post_run_cell", lambda result: close_all(getattr(result, "error_in_exec", None))
        )
    # pandas, which the diagnosis needs, has it imported: too late once the program has ended
    import concurrent.futures.thread  # noqa: F401

    atexit.register(lambda: close_all(getattr(sys, "last_value", None)))
