"""`lk.watch(loader)`: your own training loop, with one line changed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from labkit.api import Run
from labkit.diagnosis.verdict import Diagnosis
from labkit.instruments.hangs import HangWatch
from labkit.instruments.messages import say
from labkit.process import folders, launcher
from labkit.view.display import Display, figure_of, remember
from labkit.watching import run_folders
from labkit.watching.passes import StandIn, check_iterable, iterate
from labkit.watching.recorder import Recorder

TO_TRY = "to try settings on it: lk.tune(loader, step=...)"
OPEN_MOST = 8  # watches kept open: the loop's, its validation's, and some for generators
EMPTY = (
    "watch: the loader gave no batch. If it is an iterator or a generator, it has been used up: "
    "make a new one for each pass, or watch the loader itself, not iter(loader)."
)

_open: list[Watch] = []  # the oldest first; each is the one watch of its loader


class Watch(StandIn):
    """A loader under watch: iterate it, or give it to a trainer, as you would the loader.

    All passes over it are one Run, which ends with the notebook cell, the script or `close()`.
    """

    def __init__(self, loader: Any, live: bool = True, call_site: tuple = (), model: Any = None):
        super().__init__(loader)
        self.live = live
        self.call_site = call_site
        self.model = model
        self._ends = contextlib.ExitStack()  # with the Run
        self._recorder: Recorder | None = None
        self._run: Run | None = None
        self._display: Display | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            recorder = self._opened()
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iter(self.loader)
        return iterate(recorder, self.loader, self._beat)

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __reduce__(self) -> tuple[type[Watch], tuple[object, bool]]:
        return Watch, (self.loader, self.live)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
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

    def trains(self, model: object) -> None:
        """Note which model the loop trains; None changes nothing."""
        self.model = self.model if model is None else model

    def diagnose(self) -> Diagnosis:
        """Name what holds the loop back, with evidence and advice."""
        return self.run.diagnose()

    def close(self, error: BaseException | None = None) -> None:
        """End the Run and show its diagnosis; `error` is what ended the loop, where one did."""
        recorder = self._recorder
        if recorder is None or recorder.pid != os.getpid() or self not in _open:
            return
        recorder.close(error)
        self._ends.close()
        shown, self._display = self._display, None
        _open.remove(self)
        if shown is not None:
            leave(shown, self.run)

    def __repr__(self) -> str:
        run = "" if self._recorder is None else f": {self.run!r}"
        return f"Watch({type(self.loader).__name__}){run}"

    def _opened(self) -> Recorder:
        """Return the recorder of the open Run; begin a new one where there is none."""
        if (going := self._open_recorder) is not None:
            return going
        launcher.end_standby()  # it might still be importing torch, beside this loop
        folder = run_folders.new_folder(os.getpid()) or folders.new_run()
        recorder = Recorder(folder, self.loader, self.model)
        self._recorder = recorder
        self._run = None
        live = self.live and run_folders.own_rank() == "0"
        self._display = Display() if live and run_folders.of_script is None else None
        self._ends.enter_context(HangWatch(lambda: [recorder.folder]))
        while len(_open) >= OPEN_MOST:
            _open[0].close()
        _open.append(self)
        _end_with_the_cell()
        return recorder

    @property
    def _open_recorder(self) -> Recorder | None:
        """The recorder of a Run that goes on, or is full; None in a process that was forked."""
        recorder = self._recorder
        if recorder is None or recorder.pid != os.getpid():
            return None
        return None if recorder.closed and not recorder.is_full else recorder

    @property
    def is_iterated(self) -> bool:
        """Whether a pass over the loader goes on."""
        return self._recorder is not None and self._recorder.going > 0

    def _beat(self, now: int | None) -> None:
        """Show how far the loop is; None says that a pass is over."""
        going_on = [each for each in _open if each.is_iterated or each is self]
        recorder = self._open_recorder
        if recorder is None or going_on[:1] != [self]:
            return  # inside another watched loop: a validation loop draws nothing
        recorder.beat(now)
        if self._display is None:
            return
        try:
            text = progress_line(recorder)  # from sums of bounded size
            if now is not None:  # a line that wraps could not be written over
                self._display.line(text[: shutil.get_terminal_size().columns - 1])
                return
            is_empty = recorder.steps.next == recorder.first_step and recorder.how == "exhausted"
            self._display.final(EMPTY if is_empty else text)
        except Exception as error:  # a closed terminal must not end the recording
            self._display = None
            say(f"display stopped: {type(error).__name__}: {error}")


def watch(loader: Any, *, live: bool = True, model: Any = None) -> Watch:
    """Watch a training loop through its loader: `for batch in lk.watch(loader): ...`.

    The same batches, in the same order; no device is synchronised and no random number drawn. It
    measures how long the loop waits for each batch, and how long its body takes: on a GPU until
    the device is through with it, copies to it included. Watching the same loader again, or one
    made anew of the same dataset on the same line, continues its `.run`. The last is
    `lk.watch.last`.

    Args:
        loader: Any iterable of batches: a DataLoader, a list, a generator (good for one pass).
        live: Show a line while the loop runs and the diagnosis at its end; False only records.
        model: The module that the loop trains: where its weights are, and in which number format.
    """
    if model is not None and not hasattr(model, "register_forward_pre_hook"):
        raise TypeError(f"lk.watch(model={type(model).__name__}): give it the torch.nn.Module.")
    if isinstance(loader, Watch):
        loader.trains(model)
        return loader
    check_iterable(loader, "lk.watch")
    data = sys.modules.get("torch.utils.data")
    if data and isinstance(loader, data.Dataset) and not isinstance(loader, data.IterableDataset):
        raise TypeError(
            f"lk.watch({type(loader).__name__}): a dataset gives single items. Watch its loader: "
            "for batch in lk.watch(DataLoader(dataset, batch_size=32)): ..."
        )
    caller = sys._getframe(1)
    dataset = getattr(loader, "dataset", None)
    call_site = (caller.f_code, caller.f_lineno, type(loader), id(dataset))
    for each in _open:
        anew = dataset is not None and each.call_site == call_site and not each.is_iterated
        if anew or each.loader is loader:
            each.loader = loader
            each.trains(model)
            return remember(watch, each)
    return remember(watch, Watch(loader, live, call_site, model))


remember(watch, None)


def progress_line(recorder: Recorder) -> str:
    """Say in one line how far a pass is and what has been measured."""
    tally = recorder.steps.tally
    kind = recorder.kind
    done = recorder.steps.next - recorder.first_step
    of = f"/{recorder.length}" if recorder.length else ""
    parts = [f"epoch {recorder.epoch + 1}, step {done}{of}"]
    if tally.wall:
        parts.append(f"{tally.samples / tally.wall * 1e9:,.0f} {recorder.batches.unit}/s")
        if kind == "cpu" or recorder.steps.clock is not None:  # else only launches are timed
            most = "at most " if kind == "gpu" else ""  # gaps between kernels count as busy
            busy = f"{kind.upper()} busy {most}{tally.busy / tally.wall:.0%}"
            parts.append(f"{busy}, waiting for data {tally.wait / tally.wall:.0%}")
    return " · ".join(parts)


def leave(display: Display, run: Run) -> None:
    """Leave the run and its diagnosis; in a notebook its figure, where the line was."""
    found = None if run.throughput is None else run.diagnose()
    tip = [TO_TRY] if found and found.bottleneck == "input" else []
    if display.handle is None:
        texts = [repr(run)]
        if found:
            notes = [note for note in found.notes if note not in str(found)]
            texts += [str(found), *notes]
            texts += [str(run.lines)] if len(run.lines) else []
        display.final("\n".join(texts + tip))
        return
    display.final("\n".join([repr(run), *tip]), figure_of(run) if found else None)
    if found:
        from IPython.display import display as show

        show(found)
        if len(run.lines):
            show(run.lines)


def close_all(error: BaseException | None = None, going_on: bool = True) -> None:
    """End open Runs, with the `error` that ended the cell; `going_on`: those iterated as well."""
    for each in list(_open):
        if going_on or not each.is_iterated:
            with contextlib.suppress(Exception):
                each.close(error)


@functools.cache  # once
def _end_with_the_cell() -> None:
    """See to it that open Runs end with the notebook cell, or else with the script."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell:
        shell.events.register("post_run_cell", _after_cell)
    # pandas, which the diagnosis needs, has it imported: too late once the program has ended
    import concurrent.futures.thread  # noqa: F401

    atexit.register(lambda: close_all(getattr(sys, "last_value", None)))


def _after_cell(result: object) -> None:
    error = getattr(result, "error_in_exec", None)
    close_all(error, going_on=error is not None)
