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
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

from labkit.instruments.before_calls import held
from labkit.stamps.keys import without_literals

TEXT_MARKS = ('"""', "'''")  # around a text of many lines
LONGEST_LINE = 80  # characters of a line of source that are kept
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a run of ours runs stands for the user's own: dataset, model, loop, the slow script's step
STAND_FOR_USERS = {
    os.path.join(HOME, *place.split("/"))
    for place in ("bench/data.py", "bench/models.py", "bench/loop.py", "course/slow_step.py")
}
LIBRARIES = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
LIBRARIES += (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
UNWRITTEN = ("<frozen", "<string", "<__array_function__", "<eval_with_key>")

DATALOADER_PARTS = "torch.utils.data._utils"
DATASETS = "torch.utils.data.dataset"  # of torch's own: a Subset, a TensorDataset
NOT_THE_CAUSE = (DATALOADER_PARTS, "torch.utils.data.dataloader", DATASETS, "labkit.")

KINDS = {  # of work, by the modules that do it; the longest prefix of a module's name counts
    "forward": "torch.nn torchvision.models",
    "optimizer": "torch.optim torch.nn.utils.clip_grad torch.amp",
    "torch": "torch torch.nn.parameter torch.nn.utils triton",
    "loader": "torch.utils.data",
    "logging": "logging torch.utils.tensorboard tensorboard tensorboardX wandb mlflow tqdm csv "
    "matplotlib",
    "io": "io _io os posix codecs shutil pickle _pickle sqlite3 _sqlite3 h5py torch.serialization",
    "wait": "threading _thread queue _queue select selectors multiprocessing "
    "torch.multiprocessing subprocess socket ssl urllib http requests concurrent",
    "python": "torch.utils torch.storage torchvision.transforms torchvision.io",
}
KIND_OF = {module: kind for kind, modules in KINDS.items() for module in modules.split()}
OF_TORCH = {  # by the name of what is called, with the dot of a method
    **dict.fromkeys((".item", ".tolist", ".cpu", ".numpy", ".synchronize", ".nonzero"), "sync"),
    **dict.fromkeys(("float", "int", "bool"), "sync"),  # Python's own: they read a tensor's value
    **dict.fromkeys((".to", ".cuda"), "copy"),
    ".backward": "backward",
}
OF_PYTHON = {
    "print": "logging",
    **dict.fromkeys(("open", ".read", ".write", ".writerow", ".flush", ".fsync", ".execute"), "io"),
    **dict.fromkeys(("input", "sleep", ".sleep", ".acquire", ".recv", ".wait", ".poll"), "wait"),
}
CALLED = re.compile(r"(\.?\w+)\(")
PATH = re.compile(r"(?<![\w.'])[A-Za-z_]\w*(?:\.\w+)?")  # names, with what stands behind a dot

Where: TypeAlias = tuple[str, int, str]  # file, line, function


class Place(NamedTuple):
    """What a sampled stack was at; a `lines` event has it once, as a list in this order."""

    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    within: str  # "item" or "collate": what a loader was busy with, else ""
    file: str  # of the deepest line of the user's own code
    line: int
    function: str
    call: str  # that line, without the texts in it; of older records, what it was calling
    site: Where | None = None  # where in the loop itself that was


# -- frames ----------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's own: not Python's, a package's, or labkit's."""
    if file.startswith(HOME):
        return file in STAND_FOR_USERS
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
    return names | {f"self.{name}": value for name, value in held(names.get("self")).items()}


def is_a(value: object, module: str, kind: str) -> bool:
    """Return whether it is of a class or one derived from it; False where that is not loaded."""
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and issubclass(type(value), found)


def module_of_frame(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def text_of(frame: FrameType) -> str:
    """Return the line that a frame is at, as its source has it; "" where that is not here.

    The texts in it are left out: one of them may be a password. So is a line in one of many lines.
    """
    *before, line = linecache.getlines(frame.f_code.co_filename)[: frame.f_lineno] or [""]
    if any("".join(before).count(mark) % 2 or line.count(mark) % 2 for mark in TEXT_MARKS):
        return ""
    return without_literals(" ".join(line.split()))[:LONGEST_LINE]


def name_of(code: CodeType) -> str:
    """Return the name of a function, with its class where Python knows it (3.11)."""
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")


# -- kinds of work ---------------------------------------------------------------------------------


@functools.lru_cache(4096)
def kind_of(module: str) -> str:
    """Return the kind of work that a module does; "" where its name does not tell."""
    while module and module not in KIND_OF:
        module = module.rpartition(".")[0]
    return KIND_OF.get(module, "")


def kind_of_calls(frames: list[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first: what is called first tells.

    A generator, as `tqdm(loader)`, only hands on. Where no module tells, the deepest line may: a
    package sends a batch to a GPU.
    """
    for frame in reversed(frames):
        module = module_of_frame(frame)
        called = OF_TORCH.get(f".{frame.f_code.co_name}") if module.startswith("torch.") else None
        kind = called or kind_of(module)
        if kind and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return kind
    return kind_of_line(frames[0]) if frames else ""


def kind_of_line(frame: FrameType) -> str:
    """Return the kind of work of the line that a frame is at.

    What it calls there is built in, or it would have a frame of its own: so its name tells, and
    whether the line names a tensor or a model.
    """
    text = text_of(frame)
    names = frame.f_globals | locals_of(frame)
    is_torchs = False
    for path in PATH.findall(text):
        name, _, attribute = path.partition(".")
        value = names.get(name)
        for each in (value, held(value).get(attribute)):
            is_torchs |= each is sys.modules.get("torch", sys)
            is_torchs |= is_a(each, "torch", "Tensor") or is_a(each, "torch.nn", "Module")
    kinds = OF_PYTHON | OF_TORCH if is_torchs else OF_PYTHON
    known = filter(None, map(kinds.get, CALLED.findall(text)))
    return next(known, "torch" if is_torchs else "python")


# -- places ----------------------------------------------------------------------------------------


class Places:
    """The places where the stacks of one loop were."""

    def __init__(self):
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.framed = False  # a package does, which the user's code called
        self.numbers: dict[tuple[object, ...], int] = {}  # {what a stack was: its place's number}
        self.fresh: dict[int, Place] = {}  # places that were not written yet

    def begin(self, frame: FrameType) -> None:
        """Note the loop around `frame`, which has its first batch."""
        if self.loop is None:
            self.loop, self.framed = loop_around(frame)

    def number_of(self, top: FrameType) -> int:
        """Return the number of the place where a stack is, by its deepest frame."""
        frames: list[FrameType] = []  # inside the loop, the deepest first
        loop: FrameType | None = top
        while loop is not None and loop.f_code is not self.loop:
            frames.append(loop)
            loop = loop.f_back
        own = next(filter(_is_users, frames), loop)
        ends = [each and (each.f_code, each.f_lasti) for each in (top, own)]
        key = (*ends, loop and loop.f_lineno)
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.fresh[self.numbers[key]] = self._place_of(top, frames, loop, own)
        return self.numbers[key]

    def _place_of(
        self,
        top: FrameType,
        frames: list[FrameType],
        loop: FrameType | None,
        own: FrameType | None,
    ) -> Place:
        """Return the place of a stack: in the user's own code, else in a package's."""
        within, called = _loaders_work(frames)
        if top.f_code.co_filename.startswith(HOME) and not _is_users(top):
            # A process is often put off its core in the system calls of what records it
            kind = "labkit"
        elif own is top:
            kind = kind_of_line(top)
        else:
            kind = kind_of_calls(called[: called.index(own)] if own in called else called)
        shown = own
        if shown is None or (shown is loop and (within or self.framed)):
            shown = _in_package(called) or top
        site = None
        if loop is not None and loop.f_lineno and not self.framed:
            site = (loop.f_code.co_filename, loop.f_lineno, name_of(loop.f_code))
        return Place(
            kind=kind or "loader",
            within=within,
            file=shown.f_code.co_filename,
            line=shown.f_lineno or shown.f_code.co_firstlineno,
            function=name_of(shown.f_code),
            call=text_of(shown),
            site=site,
        )


def _loaders_work(frames: list[FrameType]) -> tuple[str, list[FrameType]]:
    """Return "item" or "collate", if a loader is busy with one, and the frames called for it.

    If not, "" and all frames.
    """
    for depth, frame in enumerate(frames):
        module = module_of_frame(frame)
        if module in (f"{DATALOADER_PARTS}.fetch", f"{DATALOADER_PARTS}.collate"):
            collates = "collate" in module or "collate_fn" in text_of(frame)
            called = [each for each in frames[:depth] if module_of_frame(each) != DATASETS]
            return "collate" if collates else "item", called
    return "", frames


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of the user's code: what torch.compile has written is none."""
    is_own = is_users(frame.f_code.co_filename)
    return is_own and not module_of_frame(frame).startswith("torch.")


def _in_package(frames: list[FrameType]) -> FrameType | None:
    """Return the deepest of the frames that is of the package called first; None without one."""
    modules = [module_of_frame(frame) for frame in frames]
    called = [each for each in modules if not each.startswith(NOT_THE_CAUSE)]
    package = called[-1].partition(".")[0] if called else None
    packages = [each.partition(".")[0] for each in modules]
    return frames[packages.index(package)] if package in packages else None
