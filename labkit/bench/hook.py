"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has torch's DataLoader hooked when it is imported: each loader
that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would give it. A script
that feeds itself without one gets a run whose steps are those of its optimizer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import weakref
from pathlib import Path
from typing import Any

import labkit
from labkit.bench import stack
from labkit.bench.lines import in_workers
from labkit.bench.watch import TELEMETRY_AFTER_NS, Recorder, say
from labkit.bench.watched_pass import Pass
from labkit.process.events import now_ns

MOST = 8  # loaders of a process that are recorded: training, validation, test, ...
PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded

_recorders: dict[Any, Recorder] = {}  # by the loop's place, if known, and the dataset's id
_gone: set[Any] = set()  # keys whose dataset is no more
_pid = os.getpid()


class HookedPass(Pass):
    """An iterator of a loader under watch, which answers for the loader's own."""

    __slots__ = ("iterator",)

    def __init__(self, recorder: Recorder, iterator: Any, iter_ns: int):
        super().__init__(recorder, iterator, iter_ns, lambda now: _beat(recorder, now))
        self.iterator = iterator

    def __len__(self) -> int:
        return len(self.iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "iterator"), name)


def install(module: Any) -> None:
    """Hook torch's module of DataLoaders, or that of optimizers, when it has just been loaded."""
    if hasattr(module, "DataLoader"):
        _hook_loaders(module.DataLoader)
    else:
        module.register_optimizer_step_post_hook(OptimizerSteps())
    atexit.unregister(_close)
    atexit.register(_close)


def _hook_loaders(cls: Any) -> None:
    plain = cls.__iter__

    def __iter__(self: Any) -> Any:
        recorder = _recorder_of(self)
        if recorder is None:
            return plain(self)
        asked = now_ns()
        try:
            with in_workers(self, recorder.folder):
                iterator = plain(self)
        except BaseException as error:
            with contextlib.suppress(Exception):
                recorder.fail(error)
            raise
        try:
            return HookedPass(recorder, iterator, now_ns() - asked)
        except Exception as error:
            say(f"not recording: {error!r}")
            return iterator

    cls.__iter__ = __iter__


def _recorder_of(loader: Any) -> Recorder | None:
    """Return the recorder of a loop; None in processes and of loops that are not recorded.

    A loop is known by its place in the script and by its dataset: one that makes its loader anew
    for every epoch, or its dataset as well, continues its run; a function that trains on one
    dataset and validates on another has two. Where all code is a framework's, the dataset tells.
    """
    if os.getpid() != _pid:
        return None  # a worker, or another process that was forked
    frame = sys._getframe(2)
    while frame is not None and not stack.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    place = frame and (frame.f_code.co_filename, frame.f_lineno)
    key = (place, id(loader.dataset))
    if place and key not in _recorders:
        older = (k for k in _gone if k[0] == place and _recorders[k].current is None)
        if (before := next(older, None)) is not None:
            _gone.discard(before)
            _recorders[key] = _recorders.pop(before)
            _note_end(loader.dataset, key)
    found = _recorders.get(key)
    if key in _gone:  # its id has come again
        _gone.discard(key)
        _note_end(loader.dataset, key)
    if found is None and len(_recorders) < MOST:
        with contextlib.suppress(Exception):
            found = _recorders[key] = Recorder(_folder(), loader, labkit.__version__)
            _note_end(loader.dataset, key)
    return found


def _note_end(dataset: Any, key: Any) -> None:
    """Note when a dataset is gone: another may get its id."""
    with contextlib.suppress(TypeError):  # a list
        weakref.finalize(dataset, _gone.add if key[0] else _forget, key)


def _forget(key: Any) -> None:
    """End the run of a dataset that is gone."""
    if (recorder := _recorders.pop(key, None)) is not None:
        _recorders[None, -len(_recorders)] = recorder
        with contextlib.suppress(Exception):
            recorder.close()


def _folder() -> Path:
    """Make the folder of a run; its name begins with the process's rank."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    folder = Path(os.environ["LABKIT_WATCHING"]) / f"{rank}-{os.getpid()}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    return folder


def _beat(recorder: Recorder, now: int | None) -> None:
    if now is not None and now - recorder.opened_ns > TELEMETRY_AFTER_NS:
        recorder.start_telemetry()


def _close() -> None:
    error = getattr(sys, "last_value", None)
    for recorder in _recorders.values():
        with contextlib.suppress(Exception):
            if error is not None and recorder.how != "exhausted" and not recorder.closed:
                recorder.fail(error)
            recorder.close()


class OptimizerSteps:
    """The steps of a loop without a DataLoader: from one `optimizer.step()` to the next."""

    def __init__(self):
        self.seen, self.first = 0, None  # steps, and the optimizer that made the first
        self.steps: Pass | None = None

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        self.first = self.first or id(optimizer)
        others = _recorders if self.steps is None else ()
        if others or self.first != id(optimizer) or os.getpid() != _pid:
            return  # a DataLoader says more; of several optimizers the first one counts
        self.seen += 1
        with contextlib.suppress(Exception):
            if self.seen == PATIENCE:
                recorder = Recorder(_folder(), self, labkit.__version__)
                self.steps = Pass(recorder, self, 0, lambda now: _beat(recorder, now))
                _recorders[0] = recorder
            if self.steps is not None:
                next(self.steps)

    def __iter__(self) -> OptimizerSteps:
        return self

    def __next__(self) -> None:
        """Return a batch, in the eyes of the recorder."""
