"""What work a frame does at the moment: its kind, and the call. It runs no user's code."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import linecache
import re
import sys
from collections.abc import Iterable
from types import CodeType, FrameType, ModuleType

from labkit.bench.stack import is_a, locals_of, module_of_frame, position_of

KINDS = {  # of work, by the modules that do it; the longest prefix of a module's name counts
    "forward": "torch.nn torchvision.models",
    "optimizer": "torch.optim torch.nn.utils.clip_grad torch.amp",
    "torch": "torch torch.nn.parameter torch.nn.utils triton",
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
IN_PLACE = frozenset(
    ["add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "copy_", "data"]
)
SAVES = re.compile(  # a call of a package that writes, by its name
    r"(^|[._])(save|savefig|imsave|imwrite|dump|to_(csv|json|parquet|pickle)|write\w*|add_(scalar|"
    r"image|histogram|figure|text)s?|log_(metric|artifact)s?)\(\)$"
)
OF_BUILTINS = {"print": "logging", "open": "io", "input": "wait"}
CALL_LENGTH = 80  # characters of it that are kept
# What Python hands to the objects' own code: of tensors, comparisons and indices are torch's
OPERATIONS = (ast.Call, ast.BinOp, ast.Compare, ast.Subscript, ast.UnaryOp)


@functools.lru_cache(4096)
def kind_of(module: str) -> str:
    """Return the kind of work that a module does; "" where its name does not tell."""
    while module and module not in KIND_OF:
        module = module.rpartition(".")[0]
    return KIND_OF.get(module, "")


def kind_of_calls(frames: Iterable[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first; the last has the say.

    Not where it calls torch for a tensor on a GPU: a logger that reads one waits for all that is
    queued, and so does a package that asks whether a loss is finite.
    """
    kind = ""
    deepest = None
    for frame in frames:
        deepest = deepest or frame
        module = module_of_frame(frame)
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        kind = special or kind_of(module) or kind or "library"
    if deepest is not None and kind in ("library", "logging"):
        node = expression(deepest)
        of_torch = kind_of_torch_call(deepest)
        if (of_torch == "sync" or kind == "library") and node and is_on_gpu(node, deepest):
            return of_torch or kind
    return kind


def kind_and_call(frame: FrameType) -> tuple[str, str]:
    """Return what the user's own code does at the moment: ("sync", "loss.item()")."""
    node = expression(frame)
    if node is None:
        return "python", ""
    if not isinstance(node, (ast.Call, ast.BinOp)) and not is_on_gpu(node, frame):
        return "python", ""  # a loop over the elements of a tensor in RAM is Python's
    kind = kind_of_node(node, frame)
    text = call_text(node)
    return "logging" if kind == "library" and SAVES.search(text) else kind, text


def kind_of_node(node: ast.expr, frame: FrameType) -> str:
    """Return the kind of work of a call, or of an operation on tensors."""
    function = node.func if isinstance(node, ast.Call) else node
    name = getattr(function, "attr", getattr(function, "id", ""))
    module = _owner(function, frame)
    if module.split(".")[0] == "torch":
        kind = OF_TORCH.get(name) or kind_of(module)
        return "sync" if kind == "copy" and _is_to_host(node, frame) else kind
    if module == "builtins":
        read = getattr(node, "args", ()) if name in ("float", "int", "bool") else ()
        reads = any(_owner(argument, frame).startswith("torch") for argument in read)
        return "sync" if reads else OF_BUILTINS.get(name, "python")
    if module == "time" and name != "sleep":
        return "python"  # a clock: what took the time came before
    return (kind_of(module) or "library") if module else "python"


def is_on_gpu(node: ast.expr, frame: FrameType) -> bool:
    """Return whether an expression names a tensor that is not in the host's memory."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return False  # that looks at no value
    return any(tensor_on_gpu(each, frame) is not None for each in ast.walk(node))


def tensor_on_gpu(node: ast.AST, frame: FrameType) -> object | None:
    """Return the tensor that a name stands for, if it is not in the host's memory."""
    found = _looked_up(node, frame)
    is_tensor = hasattr(type(found), "is_cpu")  # the class is asked: it runs no `__getattr__`
    return found if is_tensor and getattr(found, "is_cpu", True) is False else None


def _is_to_host(node: ast.expr, frame: FrameType) -> bool:
    """Return whether a call copies to the CPU: `loss.to("cpu")`, or a device's name in its place.

    Such a copy waits until the device is through with the tensor.
    """
    if not isinstance(node, ast.Call):
        return False
    for argument in (*node.args, *(each.value for each in node.keywords)):
        is_written = isinstance(argument, ast.Constant)
        value = argument.value if is_written else _looked_up(argument, frame)
        if isinstance(value, str) or is_a(value, "torch", "device"):
            return str(value) == "cpu"
    return False


def kind_of_torch_call(frame: FrameType) -> str:
    """Return the kind of a call that a frame makes into torch; "" where it makes another."""
    node = expression(frame)
    function = node.func if isinstance(node, ast.Call) else node
    is_torch = function is not None and _owner(function, frame).split(".")[0] == "torch"
    return kind_and_call(frame)[0] if is_torch else ""


def updates_weights(frame: FrameType, is_loop: bool) -> bool:
    """Return whether a user's code updates weights by their gradients: it names both, and writes.

    Of the loop itself, which does all else as well, it is told by the operation alone.
    """
    if is_loop:
        node = expression(frame)
        parts = ast.walk(node) if node else ()
        names = {each.attr for each in parts if isinstance(each, ast.Attribute)}
        writes = not isinstance(node, ast.Call)  # w -= lr * w.grad
    else:
        code = frame.f_code
        names = {*code.co_names}
        writes = any(
            each.argrepr == "-=" or "INPLACE_SUB" in each.opname
            for each in dis.get_instructions(code)
        )
    if "grad" not in names or {"backward", "autograd"} & names:
        return False
    return writes or not IN_PLACE.isdisjoint(names) or any("_foreach_" in name for name in names)


def call_text(node: ast.expr | None) -> str:
    """Return an expression as it stands in the source, a call without its arguments."""
    if node is None:
        return ""
    text = f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)
    return text[:CALL_LENGTH]


def expression(frame: FrameType) -> ast.expr | None:
    """Return the call or operation that a frame evaluates; None where that cannot be told."""
    return _parsed(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(4096)
def _parsed(code: CodeType, instruction: int, line_now: int | None) -> ast.expr | None:
    text = source_of(code, instruction, line_now)
    for written in (f"({text})", text):  # an expression, or `x += y`
        with contextlib.suppress(SyntaxError, ValueError):
            parsed = ast.parse(written)
            if parsed.body and isinstance(parsed.body[0], ast.For):
                parsed = parsed.body[0].iter  # it asks for the next item; the body is not its own
            for node in ast.walk(parsed):
                if isinstance(node, OPERATIONS):
                    return node
                if isinstance(node, ast.AugAssign):
                    return ast.BinOp(node.target, node.op, node.value)
    return None


def source_of(code: CodeType, instruction: int, line_now: int | None = None) -> str:
    """Return the text that an instruction was compiled from; "" at a loop's jump back."""
    if sys.version_info < (3, 11):  # which knows lines only
        line = last = line_now
        column = end = None
    else:
        line, last, column, end = position_of(code, instruction)
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
    if isinstance(node, ast.Compare):
        compared = [_owner(each, frame) for each in (node.left, *node.comparators)]
        return next((module for module in compared if module.startswith("torch")), compared[0])
    return ""


def _looked_up(node: ast.AST, frame: FrameType) -> object:
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
