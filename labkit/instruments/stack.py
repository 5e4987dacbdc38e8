"""Where a sampled stack is: whose code, which line, and what kind of work. It runs no user's code.

A place is described when it is first met, and has a number from then on.
"""

from __future__ import annotations

import functools
import gc
import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from types import CodeType, FrameType
from typing import NamedTuple

from labkit.instruments.before_calls import attributes_of
from labkit.stamps.keys import without_literals

TEXT_MARKS = ('"""', "'''")  # around a text of many lines
LONGEST_LINE = 80  # characters of a line of source that are kept
HOME = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")  # of labkit
# What a run of ours runs stands for the user's own: dataset, model, loop, the slow script's step
STAND_FOR_USERS = ("bench/data.py", "bench/models.py", "bench/loop.py", "course/slow_step.py")
LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages", "torchinductor_")
UNWRITTEN = ("<frozen", "<string", "<__array_function__", "<eval_with_key>")

FETCH = "torch.utils.data._utils.fetch"
COLLATE = "torch.utils.data._utils.collate"


def _by_name(kinds: dict[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


# Kinds of work, by the modules that do it; the longest prefix of a module's name counts
OF_MODULE = _by_name(
    {
        "forward": "torch.nn torchvision.models",
        "optimizer": "torch.optim torch.nn.utils.clip_grad torch.amp torch.cuda.amp",
        "torch": "torch torch.nn.parameter torch.nn.utils triton",
        "loader": "torch.utils.data",
        "logging": "logging torch.utils.tensorboard tensorboard tensorboardX wandb mlflow tqdm csv "
        "matplotlib",
        "io": "io _io os posix codecs shutil pickle _pickle sqlite3 _sqlite3 h5py "
        "torch.serialization",
        "wait": "threading _thread queue _queue select selectors multiprocessing "
        "torch.multiprocessing subprocess socket ssl urllib http requests concurrent",
        "python": "torch.utils torch.storage torchvision.transforms torchvision.io",
        "backward": "torch.autograd",
        "sync": "torch.cuda",
        "": "torch._tensor torch.utils.data.dataset",  # what they call tells
    }
)
# By the name of what a line calls, with the dot of a method
OF_PYTHON = _by_name(
    {
        "logging": "print",
        "io": "open .read .write .writerow .flush .fsync .execute",
        "wait": "input sleep .sleep .acquire .recv .wait .poll",
    }
)
OF_TORCH = _by_name(
    {
        "sync": ".item .tolist .cpu .numpy .synchronize .nonzero float int bool",
        "copy": ".to .cuda",
    }
)
CALLED = re.compile(r"(\.?\w+)\(")
NAMED = re.compile(r"(?<![\w.'])(?:self\.)?[A-Za-z_]\w*")


class Place(NamedTuple):
    """What a sampled stack was at; a `lines` event has it once, as a list in this order."""

    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    within: str  # "item" or "collate": what a loader was busy with, else ""
    file: str  # of the deepest line of the user's own code, else of the deepest
    line: int
    function: str
    call: str  # that line, without the texts in it; of older records, what it was calling


# -- frames ----------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's own: not Python's, a package's, or labkit's."""
    if file.startswith(HOME):
        return file.endswith(STAND_FOR_USERS)
    return not file.startswith(UNWRITTEN) and not any(folder in file for folder in LIBRARIES)


def top_frame(thread: int) -> FrameType | None:
    """Return the innermost frame that another thread is in; None where it has ended.

    Python 3.11 makes a frame's object when it is first asked for, as by `f_back`. Making one may
    collect garbage, whose finalizers may let the thread go on and drop that very frame: then the
    process crashes. So all frames of the stack are made here, and nothing is collected meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        top = frame = sys._current_frames().get(thread)
        while frame is not None:
            frame = frame.f_back
    finally:
        if collects:
            gc.enable()
    return top


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
    if sys.gettrace() or sys.getprofile() or "locals" in code.co_names:
        return {}
    kept = frame.f_locals
    names = dict(kept)
    for name in code.co_varnames + code.co_cellvars + code.co_freevars:
        kept.pop(name, None)  # what `exec` has added stays
    return names


def variables(frame: FrameType) -> dict[str, object]:
    """Return a frame's variables by name, and what its `self` holds, as `self.name`."""
    names = locals_of(frame)
    return names | {
        f"self.{name}": value for name, value in attributes_of(names.get("self")).items()
    }


def is_a(value: object, module: str, kind: str) -> bool:
    """Return whether it is of a class or one derived from it; False where that is not loaded."""
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and issubclass(type(value), found)


def module_of_frame(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def text_of(frame: FrameType) -> str:
    """Return the line that a frame is at, as its source has it; "" where that is not here.

    The texts in it are left out: one of them may be a password. So is a line in one of many lines.
    """
    *before, line = linecache.getlines(frame.f_code.co_filename)[: frame.f_lineno] or [""]
    if any("".join(before).count(mark) % 2 or line.count(mark) % 2 for mark in TEXT_MARKS):
        return ""
    return without_literals(" ".join(line.split()))[:LONGEST_LINE]


# -- kinds of work ---------------------------------------------------------------------------------


def kind_of_calls(frames: list[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first: what is called first tells.

    A generator, as `tqdm(loader)`, only hands on. Where no module tells, the deepest line may: a
    package sends a batch to a GPU.
    """
    for frame in reversed(frames):
        module = module_of_frame(frame)
        while module and module not in OF_MODULE:
            module = module.rpartition(".")[0]
        if OF_MODULE.get(module) and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return OF_MODULE[module]
    return kind_of_line(frames[0]) if frames else "loader"


def kind_of_line(frame: FrameType) -> str:
    """Return the kind of work of the line that a frame is at.

    What it calls there is built in, or it would have a frame of its own: so its name tells, and
    whether the line names a tensor or a model.
    """
    text = text_of(frame)
    names = frame.f_globals | variables(frame)
    values = [names.get(name) for name in NAMED.findall(text)]
    torch = sys.modules.get("torch")
    is_torchs = torch is not None and any(
        value is torch or issubclass(type(value), (torch.Tensor, torch.nn.Module))
        for value in values
    )
    kinds = OF_PYTHON | OF_TORCH if is_torchs else OF_PYTHON
    known = filter(None, map(kinds.get, CALLED.findall(text)))
    return next(known, "torch" if is_torchs else "python")


# -- places ----------------------------------------------------------------------------------------


class Places:
    """The places where the stacks of one loop were."""

    def __init__(self):
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.numbers: dict[tuple[object, ...], int] = {}  # {what a stack was: its place's number}
        self.fresh: dict[int, Place] = {}  # places that were not written yet

    def begin(self, frame: FrameType) -> None:
        """Note the loop around `frame`, which has its first batch."""
        codes = [each.f_code for each, _ in traceback.walk_stack(frame)]
        plain = (code for code in codes if not code.co_flags & inspect.CO_GENERATOR)  # it hands on
        users = (code for code in plain if is_users(code.co_filename))
        self.loop = self.loop or next(users, None)

    def number_of(self, top: FrameType) -> int:
        """Return the number of the place where a stack is, by its deepest frame."""
        frames = []  # the deepest first, the loop's own at last
        frame: FrameType | None = top
        while frame is not None:
            frames.append(frame)
            frame = None if frame.f_code is self.loop else frame.f_back
        own = next(filter(_is_users, frames), top)
        key = top.f_code, top.f_lasti, own.f_code, own.f_lasti
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.fresh[self.numbers[key]] = _place_of(frames)
        return self.numbers[key]


def _place_of(frames: list[FrameType]) -> Place:
    """Return the place of a stack, by its frames, the deepest first."""
    top = frames[0]
    within = ""
    modules = [*map(module_of_frame, frames)]
    for depth, module in enumerate(modules):
        if module in (FETCH, COLLATE):  # a loader is busy: what counts is what it called
            collates = module == COLLATE or "collate_fn" in text_of(frames[depth])
            within = "collate" if collates else "item"
            frames, modules = frames[:depth], modules[:depth]
            break
    own = next(filter(_is_users, frames), None)
    called = frames if own is None else frames[: frames.index(own)]
    if top.f_code.co_filename.startswith(HOME) and not _is_users(top):
        # A process is often put off its core in the system calls of what records it
        kind = "labkit"
    else:
        kind = kind_of_line(top) if own is top else kind_of_calls(called)
    if own is None:  # the deepest line of the package, not torch, that is called first
        packages = [module.partition(".")[0] for module in modules]
        first = next((package for package in reversed(packages) if package != "torch"), None)
        own = frames[packages.index(first)] if first else top
    code = own.f_code
    return Place(
        kind=kind,
        within=within,
        file=code.co_filename,
        line=own.f_lineno or code.co_firstlineno,
        # with its class where Python knows it (3.11)
        function=getattr(code, "co_qualname", code.co_name).replace("<locals>.", ""),
        call=text_of(own),
    )


def _is_users(frame: FrameType) -> bool:
    return is_users(frame.f_code.co_filename)
