"""A user's objects on their way to another process, by value: what a notebook defines is no module.

`dumped` is for the bench, `send_by_value` for loader workers that are started anew (spawn,
forkserver).
"""

from __future__ import annotations

import importlib
import io
import linecache
import multiprocessing.reduction
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


class ByValuePickler(cloudpickle.Pickler):
    """Pickles as cloudpickle does, and kernels of Triton and modules of a class of their own."""

    def reducer_override(self, obj: Any) -> Any:
        """Return what makes an object again, as pickle wants it."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:  # torch.backends.cudnn
            return importlib.import_module, (obj.__name__,)
        if type(obj).__name__ == "JITFunction":  # it holds a lock
            return kernel_of, (obj.fn, linecache.getlines(obj.fn.__code__.co_filename))
        return super().reducer_override(obj)


class WorkersPickler(ByValuePickler):
    """Pickles tensors and connections as multiprocessing does."""

    # On the class, where the C pickler looks; a live view, for torch may register more
    dispatch_table = ChainMap(
        ForkingPickler._extra_reducers,  # pyright: ignore[reportAttributeAccessIssue]
        dict(cloudpickle.Pickler.dispatch_table),
    )


def dumped(thing: object) -> bytes:
    """Return an object as bytes, with all that a notebook defines of it."""
    file = io.BytesIO()
    ByValuePickler(file).dump(thing)
    return file.getvalue()


def kernel_of(function: FunctionType, lines: list[str]) -> JITFunction:
    """Make a Triton kernel of a function, and the lines of the cell or the file that defines it."""
    import triton

    name = function.__code__.co_filename  # `triton.jit` compiles the source, which it reads there
    linecache.cache[name] = (len("".join(lines)), None, lines, name)  # None: there is no such file
    return triton.jit(function)


def dump_for_worker(what: object, file: IO[bytes], protocol: int | None = None) -> None:
    """Take the place of `multiprocessing.reduction.dump`, which sends classes by name only."""
    WorkersPickler(file, protocol).dump(what)


def send_by_value() -> None:
    """From now on, processes that this one starts are sent notebooks' classes by value."""
    multiprocessing.reduction.dump = dump_for_worker
