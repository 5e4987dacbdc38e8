"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has torch's DataLoader hooked when it is imported: each loader
that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would give it. A script
that feeds itself without one gets a run whose steps are those of its optimizer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from labkit.bench import stack
from labkit.bench.loader_hook import without_ours
from labkit.process.events import EventLog, now_ns
from labkit.watching import headroom_found
from labkit.watching.passes import Pass, StandsIn
from labkit.watching.recorder import Recorder
from labkit.watching.replay_blocks import Blocks
from labkit.watching.replayed_pass import ReplayedPass
from labkit.watching.run_folders import new_folder

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

MOST_LOADERS = 8  # loaders of a process that are recorded: training, validation, test, ...
PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded


@dataclass
class WatchedLoop:
    """A loop that is recorded: known by its place in the script, if any, and by its dataset."""

    recorder: Recorder
    place: tuple[str, int] | None = None
    dataset: int | None = None  # its id; None once it is gone, as another may get that
    loader: weakref.ref[object] | None = None  # the last that it iterated
    blocks: Blocks | None = None  # where its headroom is measured
    has_trained: bool = False  # only then may it be given a batch again: a validation may not

    def feed_from(self, loader: object) -> None:
        """Note which loader it has now, and in its record where it is made anew for each pass."""
        dataset = getattr(loader, "dataset", loader)
        is_other = self.dataset != id(dataset)
        with contextlib.suppress(Exception):
            if self.loader is not None and self.loader() is None:
                self.recorder.log.write("remade", dataset=is_other)
            self.loader = weakref.ref(loader)
        if is_other:
            self.dataset = id(dataset)
            with contextlib.suppress(TypeError):  # a list
                weakref.finalize(dataset, setattr, self, "dataset", None)

    def close(self, error: BaseException | None) -> None:
        """End its run, with the `error` that ended the script, where one did."""
        if self.blocks is not None and self.has_trained:
            headroom_found.write(self.blocks, self.recorder.log)
        self.recorder.close(error)


class HookedPass(StandsIn, Pass):
    """An iterator of a loader under watch, which answers for the loader's own."""


class WatchedScript:
    """The loops of this process that are recorded."""

    def __init__(self):
        self.pid = os.getpid()
        self.loops: list[WatchedLoop] = []

    @property
    def is_here(self) -> bool:
        """Whether this is its process: no worker, nor another one that was forked."""
        return self.pid == os.getpid()

    def loop_of(self, loader: DataLoader) -> WatchedLoop | None:
        """Return what records a loop; None in processes and of loops that are not recorded.

        A loop that makes its loader anew for every epoch, or its dataset as well, continues its
        run; a function that trains on one dataset and validates on another has two. Where all code
        is a framework's, the dataset tells.
        """
        if not self.is_here:
            return None
        frames = traceback.walk_stack(sys._getframe(2))
        places = ((frame.f_code.co_filename, line) for frame, line in frames)
        place = next((place for place in places if stack.is_users(place[0])), None)
        here = [loop for loop in self.loops if loop.place == place]
        same = [loop for loop in here if loop.dataset == id(loader.dataset)]
        if place:
            over = (loop for loop in here if loop.recorder.current is None)
            same += [loop for loop in over if loop.dataset is None]
        if not same:
            return self.begin(loader, place)
        same[0].feed_from(loader)
        return same[0]

    def begin(self, loader: object, place: tuple[str, int] | None) -> WatchedLoop | None:
        """Begin a run, in a folder whose name begins with the rank; None if that fails."""
        folder = new_folder(self.pid)
        with contextlib.suppress(Exception):
            if len(self.loops) < MOST_LOADERS:
                folder.mkdir(parents=True)
                loop = WatchedLoop(Recorder(folder, loader, place=place), place)
                self.loops.append(loop)
                loop.feed_from(loader)
                if os.environ.get("LABKIT_HEADROOM"):
                    loop.blocks = Blocks(loader)
                _hook_saving(self.loops[0].recorder.log)
                return loop
        return None

    def note_training(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the innermost loop trains: the last to begin, with all its loaders."""
        going = [loop for loop in self.loops if loop.recorder.current is not None]
        if going:
            innermost = max(going, key=lambda each: each.recorder.began_ns)
            innermost.has_trained = True
            for loop in going:
                if loop is innermost or (loop.place and loop.place == innermost.place):
                    loop.recorder.trained_by(optimizer)

    def close(self) -> None:
        """End the runs, with the error that ended the script, where one did."""
        error = getattr(sys, "last_value", None)
        for loop in self.loops:
            with contextlib.suppress(Exception):
                loop.close(error)


SCRIPT = WatchedScript()


def install(module: ModuleType) -> None:
    """Hook a module of DataLoaders, or torch's of optimizers, when it has just been loaded."""
    loaders = getattr(module, "DataLoader", None)
    if loaders is None:
        module.register_optimizer_step_post_hook(_untraced(OptimizerSteps(SCRIPT)))
    else:
        _hook_loaders(loaders)
    if getattr(sys.excepthook, "func", None) is not _show_error:
        sys.excepthook = functools.partial(_show_error, sys.excepthook)
    atexit.unregister(SCRIPT.close)
    atexit.register(SCRIPT.close)


def _hook_loaders(loaders: type) -> None:
    """Record the iterators of a class of loaders, and of its subclasses that have their own."""
    loaders.__iter__ = _recorded(loaders.__iter__)

    def __init_subclass__(cls: type, **more: object) -> None:
        super(loaders, cls).__init_subclass__(**more)
        codes = [each.__code__ for each in vars(cls).values() if hasattr(each, "__code__")]
        if "__iter__" in vars(cls) and not any("__iter__" in code.co_names for code in codes):
            cls.__iter__ = _recorded(cls.__iter__)  # it never calls the hooked one above

    type.__setattr__(loaders, "__init_subclass__", classmethod(__init_subclass__))


def _hook_saving(log: EventLog) -> None:
    """Write into `log` when `torch.save` is called, unless that goes on."""
    torch = sys.modules.get("torch")
    if torch is None or hasattr(torch.save, "_labkit"):
        return
    save = torch.save

    @functools.wraps(save)
    def timed(*args: object, **more: object) -> object:
        began_ns = now_ns()
        try:
            return save(*args, **more)
        finally:
            with contextlib.suppress(Exception):
                log.write("saved", began=began_ns, ended=now_ns())

    vars(timed)["_labkit"] = True
    vars(torch)["save"] = timed


def _show_error(
    show: Callable, kind: type[BaseException], error: BaseException, shown: TracebackType | None
) -> None:
    """Show an error that ends the script as without us: none of its frames is ours."""
    with contextlib.suppress(Exception):
        shown = without_ours(shown)
        each = error
        while each is not None:
            each.__traceback__ = without_ours(each.__traceback__)
            each = each.__cause__ or each.__context__
    show(kind, error, shown)


def _recorded(plain: Callable[[DataLoader], Iterator[object]]) -> Callable:
    """Return a loader's `__iter__` that is recorded, and else does what the `plain` one does."""

    @functools.wraps(plain)
    def __iter__(self: DataLoader) -> Iterator[object]:
        loop = SCRIPT.loop_of(self)
        if loop is None:
            return plain(self)
        iterator = loop.recorder.iterate(self, lambda: plain(self), kind=HookedPass)
        if loop.blocks is None:
            return iterator
        return ReplayedPass(loop.blocks, iterator, self, lambda: loop.has_trained)

    return __iter__


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that torch.compile does not trace where it traces what is hooked."""
    torch = sys.modules["torch"]

    @torch._disable_dynamo
    def call(*given: object) -> None:
        hook(*given)

    return call


class OptimizerSteps:
    """The steps of a loop without a DataLoader: from one `optimizer.step()` to the next.

    It also tells which of the loops with one train.
    """

    def __init__(self, script: WatchedScript):
        self.script = script
        self.seen = 0  # steps
        self.first_id: int | None = None  # of the optimizer that made the first
        self.recorded: Pass | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        if self.script.loops and self.recorded is None:
            self.script.note_training(optimizer)
            return  # a DataLoader says more
        self.first_id = self.first_id or id(optimizer)
        if self.first_id != id(optimizer) or not self.script.is_here:
            return  # of several optimizers the first one counts
        if _is_capturing():
            return  # into a CUDA graph: an event that is asked now would break the capture
        self.seen += 1
        with contextlib.suppress(Exception):
            if self.seen == PATIENCE:
                loop = self.script.begin(self, None)
                if loop is None:
                    return
                recorder = loop.recorder
                recorder.trained_by(optimizer)
                self.recorded = Pass(recorder, itertools.repeat(None), 0, recorder.beat)
            if self.recorded is not None:
                next(self.recorded)


def _is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph."""
    cuda = sys.modules["torch"].cuda  # without a context, a CPU build refuses the second question
    return cuda.is_initialized() and cuda.is_current_stream_capturing()
