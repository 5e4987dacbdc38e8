"""Triton kernels that are defined in a notebook travel to the bench with their source.

`triton.jit` compiles a function's source, which only the notebook has, and what it makes holds a
lock, which cannot be pickled. So the function and the text of its cell are sent instead.
"""

from __future__ import annotations

import copyreg
import inspect
import linecache
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from triton.runtime.jit import JITFunction


def allow() -> None:
    """Let kernels be pickled, where Triton is loaded."""
    if triton := sys.modules.get("triton"):
        copyreg.pickle(triton.JITFunction, taken_apart)


def taken_apart(kernel: JITFunction) -> tuple[Callable, tuple]:
    """Return what makes a kernel again: a function and its arguments, as pickle wants them."""
    name = inspect.getsourcefile(kernel.fn) or kernel.fn.__code__.co_filename
    return compiled_from, (kernel.fn, linecache.getlines(name), kernel.do_not_specialize)


def compiled_from(
    function: FunctionType, lines: list[str], do_not_specialize: list[int | str]
) -> JITFunction:
    """Make a kernel of a function, and the lines of the cell or the file that defines it."""
    import triton

    name = function.__code__.co_filename
    linecache.cache[name] = (len("".join(lines)), None, lines, name)  # None: there is no such file
    make: Callable[..., JITFunction] = triton.jit  # its annotations lack lists of arguments
    return make(function, do_not_specialize=do_not_specialize)


def device() -> torch.device:
    """Return what kernels run on: a card that torch has kernels for itself, else the CPU."""
    import torch

    from labkit.instruments.devices import find_device

    found = find_device()
    return found if found.type == "cuda" else torch.device("cpu")
