"""`lk.watch(loader)`: your own training loop, with one line changed.

    for batch in lk.watch(loader):
        ...

Hands the same batches on in the same order, and shows while the loop runs, and diagnoses when it
is over, how long it waited for data and how long its body took.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
from typing import Any

import numpy as np

import labkit
from labkit.analysis import thresholds
from labkit.bench.lines import in_workers
from labkit.bench.watch import TELEMETRY_AFTER_NS, Pass, Recorder, Tally, say
from labkit.process import folders
from labkit.process.events import now_ns
from labkit.results.run import Run
from labkit.show.display import Display, StaticFigure, in_notebook

OPEN_MOST = 8  # watches kept open: the loop's, its validation's, and some for generators
BAR = 8  # characters
POINTS = 512  # of the utilization curve; then every other one is dropped
WINDOW_S = 2.0
EMPTY = (
    "watch: the loader gave no batch. If it is an iterator or a generator, it has been used up: "
    "make a new one for each pass, or watch the loader itself, not iter(loader)."
)

_open: list[Watch] = []  # the oldest first; each is the one watch of its loader


class Watch:
    """A loader under watch: iterate it as you would the loader.

    Everything else (`len`, `dataset`, `batch_size`, `sampler`, `set_epoch`, ...) is the loader's
    own, so trainers that are given a loader can be given this. All passes over it are one Run, the
    pauses between them left out of its statistics. It ends with the notebook cell or the script,
    or with `close()`; a pass that begins later is a new Run.
    """

    def __init__(self, loader: Any, title: str = "", live: bool = True):
        self.loader, self.title, self.live = loader, title, live
        self._recorder: Recorder | None = None
        self._run: Run | None = None
        self._view: View | None = None

    def __iter__(self) -> Any:
        try:
            recorder = self._opened()
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iter(self.loader)
        asked = now_ns()
        try:
            with in_workers(self.loader, recorder.folder):
                iterator = iter(self.loader)  # here, as without us: draws a seed, starts workers
        except BaseException as error:
            with contextlib.suppress(Exception):
                recorder.fail(error)
            raise
        try:
            return Pass(recorder, iterator, now_ns() - asked, self._beat)
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iterator

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:  # copying, pickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __reduce__(self) -> Any:
        return Watch, (self.loader, self.title, self.live)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        self.close(error)

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the first pass."""
        if self._recorder is None:
            raise RuntimeError("nothing has been watched yet: iterate the watch first.")
        if not self._recorder.closed:
            self._recorder.flush()
        if self._run is None:
            self._run = Run(self._recorder.folder, process=self._recorder)
        return self._run

    def diagnose(self) -> Any:
        """Name what holds the loop back, with evidence and advice (a Diagnosis)."""
        return self.run.diagnose()

    def close(self, error: BaseException | None = None) -> None:
        """End the Run and show its diagnosis; `error` is what ended the loop, where one did."""
        recorder, view = self._recorder, self._view
        if not _is_open(recorder):
            return
        if error is not None and recorder.how != "exhausted":
            recorder.fail(error)
        recorder.close()
        self._view = None
        if self in _open:
            _open.remove(self)
        if view is not None:
            view.close(self)

    def __repr__(self) -> str:
        name = type(self.loader).__name__
        return f"Watch({name})" if self._recorder is None else f"Watch({name}): {self.run!r}"

    def _opened(self) -> Recorder:
        """Return the recorder of the open Run; begin a new one where there is none."""
        if not _is_open(self._recorder):
            self._recorder = Recorder(folders.new_run(), self.loader, labkit.__version__)
            rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
            self._run, self._view = None, View() if self.live and rank == "0" else None
            while len(_open) >= OPEN_MOST:
                _open[0].close()
            _open.append(self)
            _end_with_the_cell()
        return self._recorder

    def _beat(self, now: int | None) -> None:
        """Show how far the loop is; None says that a pass is over."""
        going = [each for each in _open if each._recorder.current is not None or each is self]
        if going[:1] != [self]:
            return  # inside another watched loop: a validation loop draws nothing
        if now is not None and now - self._recorder.opened_ns > TELEMETRY_AFTER_NS:
            self._recorder.start_telemetry()
        if self._view is not None:
            try:
                self._view.update(self, over=now is None)
            except Exception as error:  # a closed terminal must not end the recording
                self._view = None
                say(f"display stopped: {type(error).__name__}: {error}")


def _is_open(recorder: Recorder | None) -> bool:
    """Whether it goes on, here and not in the process that this one was forked from."""
    return recorder is not None and not recorder.closed and recorder.pid == os.getpid()


def watch(loader: Any, *, title: str = "", live: bool = True) -> Watch:
    """Watch a training loop through its loader: `for batch in lk.watch(loader): ...`.

    The same batches, in the same order; no device is synchronised and no random number drawn. It
    measures how long the loop waits for each batch, and how long its body takes: on a GPU until
    the device is through with it, copies to it included. Watching the same loader again, as in a
    loop over epochs, continues its Run.

    Args:
        loader: Any iterable of batches: a DataLoader, a generator, a list. One that is used up
            after a pass (a generator) gives no batch in a second pass, as without a watch.
        title: A name for the live line, where several loops are watched.
        live: Show a line (in a notebook a canvas) while the loop runs, and the diagnosis at its
            end; False only records.

    Returns:
        A Watch; `.run` is the Run, `.diagnose()` its diagnosis. The last one is `lk.watch.last`.

    Raises:
        TypeError: `loader` cannot be iterated.
    """
    if isinstance(loader, Watch):
        return loader
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(
            f"lk.watch({type(loader).__name__}): give it an iterable of batches, such as a "
            "torch.utils.data.DataLoader."
        )
    same = [each for each in _open if each.loader is loader]
    watch.last = same[0] if same else Watch(loader, title, live)
    return watch.last


watch.last = None


def close_all(error: BaseException | None = None, going_on: bool = True) -> None:
    """End open Runs, with the exception that ended the cell or the script, if one did.

    `going_on`: also those whose iterator somebody still holds.
    """
    for each in list(_open):
        if going_on or each._recorder.current is None:
            with contextlib.suppress(Exception):
                each.close(error)


@functools.cache  # once
def _end_with_the_cell() -> None:
    """See to it that open Runs end with the notebook cell, or else with the script."""
    ipython = sys.modules.get("IPython")
    if shell := ipython and ipython.get_ipython():
        shell.events.register("post_run_cell", _after_cell)
    atexit.register(lambda: close_all(getattr(sys, "last_value", None)))


def _after_cell(result: Any) -> None:
    """End the Runs of the loops that ended in this cell."""
    error = getattr(result, "error_in_exec", None)
    close_all(error, going_on=error is not None)


# -- what is shown while the loop goes on ----------------------------------------------------------


class View:
    """A line on stderr, or the live canvas in a cell; at the end the diagnosis.

    Fed from sums of bounded size, never from the log, and at most twice a second: it runs in the
    training process itself, where a frame of the canvas costs about a millisecond.
    """

    def __init__(self):
        self.canvas, self.points, self.zero_ns = None, [], None
        self.seen = 0, 0  # wall and busy time behind the last point of the curve, ns
        if in_notebook():
            from labkit.show.live import LiveView

            self.canvas = LiveView()
        self.display = Display(self.canvas)

    def update(self, watch: Watch, over: bool) -> None:
        """Show where the loop is; `over` says that a pass has ended."""
        recorder, canvas = watch._recorder, self.canvas
        nothing = over and recorder.next == recorder.first_step and recorder.how == "exhausted"
        text = EMPTY if nothing else line(watch)
        if canvas is not None:
            with canvas.hold_sync():
                if recorder.tally.teeth:
                    canvas.frame, canvas.device = self._frame(recorder.tally), recorder.kind.upper()
                    canvas.tick += 1
                canvas.running, canvas.status = not over, text
        elif over:
            self.display.final(text)
        else:  # a line that wraps could not be written over
            self.display.line(text[: shutil.get_terminal_size().columns - 1])

    def _frame(self, tally: Tally) -> bytes:
        from labkit.show.live import pack

        teeth = np.array(tally.teeth)
        if self.zero_ns is None:
            self.zero_ns = teeth[0, 0]
        teeth = (teeth - self.zero_ns) / 1e9  # (n, 2) s
        now = float(teeth[-1, 1])
        # a window that the kept teeth fill, so that none is missing from it
        start = max(0.0, now - WINDOW_S, float(teeth[0, 0]) if len(teeth) > 100 else 0.0)
        wall, busy = self.seen if tally.wall >= self.seen[0] else (0, 0)  # the warm-up is forgotten
        if tally.wall > wall:
            self.points.append((now, 100 * (tally.busy - busy) / (tally.wall - wall)))
            self.seen = tally.wall, tally.busy
        if len(self.points) > POINTS:
            self.points = self.points[::2]
        shown = teeth[teeth[:, 1] > start] - start
        points = np.array(self.points, np.float32).reshape(-1, 2)
        return pack(shown.astype(np.float32), points, start, max(now, start + 0.01), now)

    def close(self, watch: Watch) -> None:
        """Leave the run and its diagnosis; in a notebook the figure, where the canvas was."""
        run = watch.run
        measured = run.utilization is not None
        in_cell = self.canvas is not None
        self.display.final(repr(run), StaticFigure.of(run) if in_cell and measured else None)
        if in_cell:
            self.canvas.close()
        if measured and in_cell:
            from IPython.display import display

            display(run.diagnose())
        elif measured:
            diagnosis = run.diagnose()
            self.display.final(" ".join([str(diagnosis), *diagnosis.notes]))


def line(watch: Watch) -> str:
    """Say in one line how far a pass is and what has been measured."""
    recorder, tally = watch._recorder, watch._recorder.tally
    done, length = recorder.next - recorder.first_step, recorder.length
    filled = round(BAR * min(1.0, done / length)) if length else 0
    bar = f"{'█' * filled}{'░' * (BAR - filled)} {done}/{length}" if length else f"step {done}"
    title = f"{watch.title}: " if watch.title else ""
    parts = [f"{title}epoch {recorder.epoch + 1} {bar}"]
    if tally.wall:
        most = "at most " if recorder.kind == "gpu" else ""  # gaps between kernels count as busy
        parts += [
            f"{tally.samples / tally.wall * 1e9:,.0f} {recorder.unit}/s",
            f"{recorder.kind.upper()} busy {most}{tally.busy / tally.wall:.0%}, "
            f"waiting for data {tally.wait / tally.wall:.0%}",
            verdict_so_far(tally, recorder.kind),
        ]
    return " · ".join(filter(None, parts))


def verdict_so_far(tally: Tally, kind: str) -> str:
    """Name the bottleneck as far as sums tell; "" while there are too few steps."""
    if tally.steps < thresholds.MIN_STEPS or not tally.wall:
        return ""
    waiting = tally.wait / tally.wall >= thresholds.WORTH_NAMING["input"]
    fed = "not input" if kind == "gpu" else "compute"  # a GPU's gaps between kernels do not show
    return f"so far: {'input' if waiting else fed}"
