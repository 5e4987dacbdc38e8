"""Whose code a sampled stack is in, and where. It runs no user's code."""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import itertools
import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType

from labkit.instruments.before_calls import held
from labkit.stamps.keys import without_literals

TEXT_MARKS = ('"""', "'''")  # around a text of many lines
LONGEST_LINE = 80  # characters of a line of source that are kept
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# What a run of ours runs stands for the user's own: dataset, model, loop, the slow script's step
STAND_FOR_USERS = {
    os.path.join(HOME, *place)
    for place in (
        ("bench", "data.py"),
        ("bench", "models.py"),
        ("bench", "loop.py"),
        ("course", "slow_step.py"),
    )
}
LIBRARIES = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
LIBRARIES += (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's own: not Python's, a package's, or labkit's."""
    if file.startswith(HOME):
        return file in STAND_FOR_USERS
    if file.startswith(("<frozen", "<string", "<__array_function__", "<eval_with_key>")):
        return False
    return not any(folder in file for folder in LIBRARIES)


def is_ours(file: str) -> bool:
    """Return whether a file is of labkit, and stands for no user's: its time is our own cost."""
    return file.startswith(HOME) and file not in STAND_FOR_USERS


def top_frame(thread: int) -> FrameType | None:
    """Return the innermost frame that another thread is in; None where it has ended.

    Python 3.11 makes a frame's object when it is first asked for, as by `f_back`. Making one may
    collect garbage, whose finalizers may let the thread go on and drop that very frame: then the
    process crashes. So all frames of the stack are made here, and nothing is collected meanwhile.
    """
    if sys.version_info[:2] != (3, 11):
        return sys._current_frames().get(thread)
    collects = gc.isenabled()
    gc.disable()
    try:
        top = sys._current_frames().get(thread)
        frame = top
        while frame is not None:
            frame = frame.f_back
    finally:
        if collects:
            gc.enable()
    return top


def loop_around(frame: FrameType | None) -> tuple[CodeType | None, bool]:
    """Return the user's code that `frame` was called from, and whether a package's loop is between.

    A generator or iterator around the loader only hands on what another loop asks for.
    """
    framed = False
    while frame is not None:
        code = frame.f_code
        module = module_of_frame(frame)
        hands_on = code.co_flags & inspect.CO_GENERATOR or code.co_name == "__next__"
        if is_users(code.co_filename) and not code.co_flags & inspect.CO_GENERATOR:
            return code, framed
        framed = framed or not (hands_on or module.startswith(("torch.", "labkit.")))
        frame = frame.f_back
    return None, framed


def locals_of(frame: FrameType) -> dict[str, object]:
    """Return a frame's variables by name; {} where they cannot be read without a trace.

    Up to Python 3.12 the frame of a function keeps what `f_locals` returned, and with it every
    tensor of the step, until it is asked again: so that is emptied. Not where the function itself
    calls `locals()`, which returns the same dict, nor under a debugger or a profiler, which write
    it back.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() or sys.getprofile() or _calls_locals(code):
        return {}
    kept = frame.f_locals
    names = dict(kept)
    for name in code.co_varnames + code.co_cellvars + code.co_freevars:
        kept.pop(name, None)  # what `exec` has added stays
    return names


@functools.lru_cache(4096)
def _calls_locals(code: CodeType) -> bool:
    """Return whether a function calls `locals()` or `vars()`, as against `vars(arguments)`."""
    for step, after in itertools.pairwise(dis.get_instructions(code)):
        is_global = step.opname == "LOAD_GLOBAL" and step.argval in ("locals", "vars")
        if is_global and after.argval == 0:  # arguments of the call
            return True
    return False


def variables(frame: FrameType) -> dict[str, object]:
    """Return a frame's variables by name, and what its `self` holds, as `self.name`."""
    names = locals_of(frame)
    return names | {f"self.{name}": value for name, value in held(names.get("self")).items()}


def is_a(value: object, module: str, kind: str) -> bool:
    """Return whether it is of a class or one derived from it; False where that is not loaded."""
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and issubclass(type(value), found)


def module_of_frame(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def line_of(frame: FrameType) -> int:
    """Return the line of a frame; at a loop's jump back, which may have none, of its function."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def text_of(frame: FrameType) -> str:
    """Return the line that a frame is at, as its source has it; "" where that is not here.

    The texts in it are left out: one of them may be a password. So is a line in one of many lines.
    """
    *before, line = linecache.getlines(frame.f_code.co_filename)[: line_of(frame)] or [""]
    if any("".join(before).count(mark) % 2 or line.count(mark) % 2 for mark in TEXT_MARKS):
        return ""
    return without_literals(" ".join(line.split()))[:LONGEST_LINE]


def name_of(code: CodeType) -> str:
    """Return the name of a function, with its class where Python knows it (3.11)."""
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
