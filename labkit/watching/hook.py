"""Watches the loops of a script that knows nothing of it: in the script's own process.

`labkit watch -- python train.py` has torch's DataLoader hooked when it is imported: each loader
that the process iterates gets a run in $LABKIT_WATCHING, as `lk.watch` would give it. A script
that feeds itself without one gets a run whose steps are those of its optimizer.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from labkit.bench.loader_hook import without_ours
from labkit.watching.passes import Pass, StandsIn
from labkit.watching.replayed_pass import ReplayedPass
from labkit.watching.script_loops import WatchedScript

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

PATIENCE = 3  # steps of the optimizer without a loader, after which they are what is recorded


class HookedPass(StandsIn, Pass):
    """An iterator of a loader under watch, which answers for the loader's own."""


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


def _show_error(
    show: Callable, kind: type[BaseException], error: BaseException, shown: TracebackType | None
) -> None:
    """Show an error that ends the script as without us: none of its frames is ours."""
    with contextlib.suppress(Exception):
        shown = without_ours(shown)
        left: list[BaseException | None] = [error]
        met: set[int] = set()  # an error may be its own cause
        while left:
            each = left.pop()
            if each is None or id(each) in met:
                continue
            met.add(id(each))
            each.__traceback__ = without_ours(each.__traceback__)
            left += [each.__cause__, each.__context__]
            if isinstance(each, getattr(builtins, "BaseExceptionGroup", ())):  # since Python 3.11
                left += getattr(each, "exceptions", ())
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
