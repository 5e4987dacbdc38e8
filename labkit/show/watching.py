"""`lk.watch(loader)`: your own training loop, with one line changed.

    for batch in lk.watch(loader):
        ...

Hands the same batches on in the same order, and shows while the loop runs, and diagnoses when it
is over, how long it waited for data and how long its body took.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any

import labkit
from labkit.bench.watch import TELEMETRY_AFTER_NS, Recorder
from labkit.bench.watch_pass import Pass
from labkit.process import folders
from labkit.process.events import now_ns
from labkit.results.run import Run
from labkit.show.watch_view import view_for

OPEN_MOST = 8  # watches kept open: the loop's, its validation's, and some for generators

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
        self._view: Any = None
        self._since_ns, self._closed = 0, True

    def __iter__(self) -> Any:
        asked = now_ns()
        try:
            iterator = iter(self.loader)  # here, as without us: it draws a seed, starts workers
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._opened().fail(error)
            raise
        took = now_ns() - asked
        try:
            return Pass(self._opened(), iterator, took, self._beat)
        except Exception as error:
            say(f"does not record: {type(error).__name__}: {error}")
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

    # -- what came of it -------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The Run so far; raises RuntimeError before the first pass."""
        if self._recorder is None:
            raise RuntimeError("nothing has been watched yet: iterate the watch first.")
        if not self._closed:
            self._recorder.flush()
        if self._run is None:
            self._run = Run(self._recorder.folder, process=Open(self))
        return self._run

    def diagnose(self) -> Any:
        """Name what holds the loop back, with evidence and advice (a Diagnosis)."""
        return self.run.diagnose()

    def close(self, error: BaseException | None = None) -> None:
        """End the Run and show its diagnosis; `error` is what ended the loop, where one did."""
        if self._closed or self._recorder.pid != os.getpid():
            return
        if error is not None and self._recorder.how != "exhausted":
            self._recorder.fail(error)
        self._recorder.close()
        self._closed = True
        if self in _open:
            _open.remove(self)
        if self._view is not None:
            self._view.close(self)
            self._view = None

    def __repr__(self) -> str:
        name = type(self.loader).__name__
        return f"Watch({name})" if self._recorder is None else f"Watch({name}): {self.run!r}"

    # -- while it goes on ------------------------------------------------------------------------

    def _opened(self) -> Recorder:
        """Return the recorder of the open Run; begin a new one where there is none."""
        if self._closed or self._recorder.pid != os.getpid():
            self._recorder = Recorder(folders.new_run(), self.loader, labkit.__version__)
            self._run, self._closed, self._since_ns = None, False, now_ns()
            self._view = view_for(self) if self.live and is_first_rank() else None
            while len(_open) >= OPEN_MOST:
                _open[0].close()
            _open.append(self)
            end_with_the_cell()
        return self._recorder

    def _beat(self, now: int | None) -> None:
        """Show how far the loop is; None says that a pass is over."""
        if not self._outermost():
            return
        if now is not None and now - self._since_ns > TELEMETRY_AFTER_NS:
            self._recorder.start_telemetry()
        if self._view is not None:
            try:
                self._view.update(self, over=now is None)
            except Exception as error:  # a closed terminal must not end the recording
                self._view = None
                say(f"shows no more: {type(error).__name__}: {error}")

    def _outermost(self) -> bool:
        """Whether no other loop is going on around this one: a validation loop draws nothing."""
        going = [each for each in _open if each._recorder.current is not None or each is self]
        return going[:1] == [self]


class Open:
    """Says to a Run whether more may follow."""

    def __init__(self, watch: Watch):
        self.watch, self.recorder = watch, watch._recorder

    def alive(self) -> bool:
        """Whether the watch is open."""
        return self.watch._recorder is self.recorder and not self.watch._closed

    def stop(self) -> None:
        """Raise RuntimeError: the loop is the user's."""
        raise RuntimeError("a watched loop is your own: interrupt it (Ctrl-C, or the stop button).")

    def join(self) -> None:
        """There is no process to wait for."""


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
    for each in _open:
        if each.loader is loader:
            watch.last = each
            return each
    watch.last = Watch(loader, title, live)
    return watch.last


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr)


def is_first_rank() -> bool:
    """Whether this is the process that speaks for all ranks of a distributed training."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def close_all(error: BaseException | None = None, going_on: bool = True) -> None:
    """End open Runs, with the exception that ended the cell or the script, if one did.

    `going_on`: also those whose iterator somebody still holds.
    """
    for each in list(_open):
        if going_on or each._recorder.current is None:
            with contextlib.suppress(Exception):
                each.close(error)


def in_cell() -> Any:
    """Return IPython's shell where one runs cells, else None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def end_with_the_cell() -> None:
    """See to it, once, that open Runs end with the notebook cell, or else with the script."""
    if end_with_the_cell.done:
        return
    end_with_the_cell.done = True
    if shell := in_cell():
        shell.events.register("post_run_cell", after_cell)
    atexit.register(lambda: close_all(getattr(sys, "last_value", None)))


def after_cell(result: Any) -> None:
    """End the Runs of the loops that ended in this cell."""
    error = getattr(result, "error_in_exec", None)
    close_all(error, going_on=error is not None)


end_with_the_cell.done = False
watch.last = None
