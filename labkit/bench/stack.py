"""What a sampled stack says: whose code it is in, which line, what work. It runs no user's code."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import os
import re
import statistics
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple, TypeAlias

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a pipeline of ours runs stands for the user's own: its dataset, model and loop
OPEN = tuple(os.path.join(HOME, "bench", f"{name}.py") for name in ("data", "models", "loop"))
CLOCKS = tuple(  # what times the items of a loader, and what samples
    os.path.join(HOME, "bench", f"{name}.py")
    for name in ("loader_clocks", "loader_hook", "loader_work", "sampler")
)
LIBRARIES = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
LIBRARIES += (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
KINDS = {  # of work, by the modules that do it; the longest prefix of a module's name counts
    "forward": "torch.nn torchvision.models",
    "optimizer": "torch.optim torch.nn.utils torch.amp",
    "torch": "torch",
    "exchange": "torch.distributed",
    "loader": "torch.utils.data",
    "checkpoint": "torch.serialization",
    "logging": "logging torch.utils.tensorboard tensorboard tensorboardX wandb mlflow tqdm csv",
    "io": "io _io os posix codecs shutil pickle _pickle sqlite3 _sqlite3 h5py",
    "wait": "time threading _thread queue _queue select selectors multiprocessing "
    "torch.multiprocessing subprocess socket ssl urllib http requests concurrent",
    "collect": "gc",
    "library": "torch.utils torch.storage torchvision.transforms torchvision.io",
}
KIND_OF = {module: kind for kind, modules in KINDS.items() for module in modules.split()}
SYNC = ("item", "tolist", "cpu", "numpy", "synchronize", "nonzero")
OF_TORCH = {
    **dict.fromkeys(SYNC, "sync"),
    "backward": "backward",
    "save": "checkpoint",
    "to": "copy",
    "cuda": "copy",
    "load": "io",
}
SAVES = re.compile(  # a call of a package that writes, by its name
    r"(^|[._])(save|savefig|imsave|imwrite|dump|to_(csv|json|parquet|pickle)|write\w*|add_(scalar|"
    r"image|histogram|figure|text)s?|log_(metric|artifact)s?)\(\)$"
)
OF_BUILTINS = {"print": "logging", "open": "io", "input": "wait"}
SNAPSHOTS = frozenset(("locals", "vars", "dir", "eval", "exec"))  # they use a frame's `f_locals`
CALL = 80  # characters of it that are kept


Where: TypeAlias = tuple[str, int, str]  # file, line, function


class Place(NamedTuple):
    """What a sampled stack was at, as a `lines` event has it."""

    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    within: str  # "item" or "collate": what a loader was busy with, else ""
    file: str
    line: int
    function: str
    call: str  # what that line was calling
    site: Where | None  # where in the loop itself that was


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's own: not Python's, a package's, or labkit's."""
    if file in OPEN:
        return True
    if file.startswith((HOME, "<frozen", "<string", "<__array_function__")):
        return False
    return not any(folder in file for folder in LIBRARIES)


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


@functools.lru_cache(4096)
def kind_of(module: str) -> str:
    """Return the kind of work that a module does; "" where its name does not tell."""
    while module and module not in KIND_OF:
        module = module.rpartition(".")[0]
    return KIND_OF.get(module, "")


def locals_of(frame: FrameType) -> Mapping[str, object]:
    """Return a frame's variables by name; {} where they cannot be read without a trace.

    Up to Python 3.12 the frame of a function keeps what `f_locals` returned, and with it every
    tensor of the step, until it is asked again: so that is emptied. Not where the function itself
    calls `locals()`, which returns the same dict, nor under a debugger, which writes it back.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals
    if sys.gettrace() is not None or _uses_its_snapshot(code):
        return {}
    kept = frame.f_locals
    names = dict(kept)
    kept.clear()
    return names


@functools.lru_cache(4096)
def _uses_its_snapshot(code: CodeType) -> bool:
    """Return whether a function calls `locals()` or alike; `model.eval()` is not alike."""
    return any(
        step.opname.startswith("LOAD_GLOBAL") and step.argval in SNAPSHOTS
        for step in dis.get_instructions(code)
    )


def module_of_frame(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def kind_of_calls(frames: list[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first; the last has the say."""
    kind = ""
    for frame in frames:  # a logger that reads a tensor logs
        module = module_of_frame(frame)
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        kind = special or kind_of(module) or kind or "library"
    return kind


def kind_and_call(frame: FrameType) -> tuple[str, str]:
    """Return what the user's own code does at the moment: ("sync", "loss.item()")."""
    node = expression(frame)
    if node is None:
        return "python", ""
    function = node.func if isinstance(node, ast.Call) else node
    name = getattr(function, "attr", getattr(function, "id", ""))
    module = _owner(function, frame)
    if module.split(".")[0] == "torch":
        kind = OF_TORCH.get(name) or kind_of(module)
    elif module == "builtins":
        read = getattr(node, "args", ()) if name in ("float", "int", "bool") else ()
        reads = any(_owner(argument, frame).startswith("torch") for argument in read)
        kind = "sync" if reads else OF_BUILTINS.get(name, "python")
    elif module == "time" and name != "sleep":
        kind = "python"  # a clock: what took the time came before
    else:
        kind = (kind_of(module) or "library") if module else "python"
    text = call_text(node)
    return "logging" if kind == "library" and SAVES.search(text) else kind, text


def call_text(node: ast.expr | None) -> str:
    """Return an expression as it stands in the source, a call without its arguments."""
    if node is None:
        return ""
    text = f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)
    return text[:CALL]


def expression(frame: FrameType) -> ast.expr | None:
    """Return the call or operation that a frame evaluates; None where that cannot be told."""
    return _parsed(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(4096)
def _parsed(code: CodeType, instruction: int, line_now: int | None) -> ast.expr | None:
    text = _source_of(code, instruction, line_now)
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(f"({text})", mode="eval")):
            if isinstance(node, (ast.Call, ast.BinOp)):
                return node
    return None


def _source_of(code: CodeType, instruction: int, line_now: int | None) -> str:
    """Return the text that an instruction was compiled from; "" at a loop's jump back."""
    if sys.version_info < (3, 11):  # which knows lines only
        line = last = line_now
        column = end = None
    else:
        line, last, column, end = _positions(code, instruction)
    if line is None or last is None:
        return ""
    lines = [each.encode() for each in linecache.getlines(code.co_filename)[line - 1 : last]]
    if lines:  # columns are of bytes, not of characters
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="ignore").strip().rstrip(":")


def _owner(node: ast.expr, frame: FrameType) -> str:
    """Return the module that what `node` evaluates to belongs to; "" where that is not known."""
    found = _looked_up(node, frame)
    if found is not None:
        is_named = isinstance(found, ModuleType) or callable(found)
        own = found if is_named and not hasattr(type(found), "forward") else type(found)
        name = getattr(own, "__module__", None) or getattr(own, "__name__", "")
        return name if isinstance(name, str) else ""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return _owner(node.value, frame)
    if isinstance(node, ast.Call):
        return _owner(node.func, frame)
    if isinstance(node, ast.UnaryOp):
        return _owner(node.operand, frame)
    if isinstance(node, ast.BinOp):
        return _owner(node.left, frame) or _owner(node.right, frame)
    return ""


def _looked_up(node: ast.expr, frame: FrameType) -> object:
    """Return the object that a name, or a name in a module, stands for; None where unknown."""
    if isinstance(node, ast.Name):
        for names in (locals_of(frame), frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, frame)
        if isinstance(owner, (ModuleType, type)):
            return vars(owner).get(node.attr)
    return None


Position = tuple[int | None, int | None, int | None, int | None]
NOWHERE: Position = (None, None, None, None)


def _positions(code: CodeType, instruction: int) -> Position:
    """Return (line, last line, column, last column) of an instruction, as far as Python knows."""
    if sys.version_info < (3, 11):
        return NOWHERE
    return next(itertools.islice(code.co_positions(), instruction // 2, None), NOWHERE)


def line_of(frame: FrameType) -> int:
    """Return the line of a frame; at a loop's jump back, the line with most of the loop in it."""
    code = frame.f_code
    if frame.f_lineno is not None and _positions(code, frame.f_lasti)[0] is not None:
        return frame.f_lineno
    steps = {step.offset: step for step in dis.get_instructions(code)}
    jump = steps.get(frame.f_lasti)
    if jump is not None and "JUMP" in jump.opname and isinstance(jump.argval, int):
        inside = [offset for offset in steps if jump.argval < offset < jump.offset]
        lines = [_positions(code, offset)[0] for offset in inside]
        known = [line for line in lines if line is not None]
        if known:
            return statistics.mode(known)
    return frame.f_lineno or code.co_firstlineno


def name_of(code: CodeType) -> str:
    """Return the name of a function, with its class where Python knows it (3.11)."""
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")


def place_of(function: object) -> tuple[str, int] | None:
    """Return the file and first line of a function, or of a callable object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    for each in (function, getattr(type(function), "__call__", None)):  # noqa: B004
        code = getattr(each, "__code__", None)
        if code:
            return code.co_filename, code.co_firstlineno
    return None


def is_grad_on() -> bool:
    """Return whether this thread records gradients: validation does not."""
    torch = sys.modules.get("torch")
    return torch is None or not hasattr(torch, "is_grad_enabled") or torch.is_grad_enabled()
