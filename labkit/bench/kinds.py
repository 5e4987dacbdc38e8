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

from labkit.bench.stack import is_a, is_users, locals_of, module_of_frame, position_of

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
OF_TENSORS = frozenset([*SYNC, "to", "cuda"])  # methods of tensors, and of little else
# Of a tensor on a GPU these have to know its values, and wait for them
NEED_VALUES = frozenset(
    ["masked_select", "equal", "allclose", "unique", "bincount", "repeat_interleave"]
)
BUILTINS_NEED_VALUES = frozenset(["min", "max", "any", "all", "range", "round"])
WRITTEN = frozenset(["__format__", "__repr__"])  # how a tensor is written, in torch._tensor
SHAPE = frozenset(["dim", "ndim", "nelement", "numel", "shape", "size", "stride"])
# What is known of a tensor without a look at its values
KNOWN = SHAPE | {"device", "dtype", "grad_fn", "layout", "names", "requires_grad"}
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
    queued, and so does a package that asks whether a loss is finite, or writes one.
    """
    kind = ""
    deepest = None
    for frame in frames:
        deepest = deepest or frame
        module = module_of_frame(frame)
        writes = module == "torch._tensor" and frame.f_code.co_name in WRITTEN
        if writes and tensor_on_gpu(ast.Name("self"), frame) is not None:
            return "sync"
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        kind = special or kind_of(module) or kind or "library"
    if deepest is not None and kind in ("library", "logging"):
        node = expression(deepest)
        if node is not None and _writes_from_gpu(node, deepest):
            return "sync"
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
    if _writes_from_gpu(node, frame):
        return "sync"
    function = node.func if isinstance(node, ast.Call) else node
    name = getattr(function, "attr", getattr(function, "id", ""))
    module = _owner(function, frame)
    if module.split(".")[0] == "torch":
        return _kind_in_torch(name, module, node, frame)
    arguments = getattr(node, "args", ())
    if module in ("builtins", "math"):
        if name in ("float", "int", "bool"):
            reads = any(_owner(argument, frame).startswith("torch") for argument in arguments)
        else:
            needs = module == "math" or name in BUILTINS_NEED_VALUES
            reads = needs and any(value_on_gpu(argument, frame) for argument in arguments)
        if reads:
            return "sync"
        return OF_BUILTINS.get(name, "python") if module == "builtins" else "python"
    if (
        name in OF_TENSORS
        and isinstance(function, ast.Attribute)
        and _may_be_tensor(function, frame)
    ):
        return _kind_in_torch(name, "torch", node, frame)
    if module == "time" and name != "sleep":
        return "python"  # a clock: what took the time came before
    return (kind_of(module) or "library") if module else "python"


def _kind_in_torch(name: str, module: str, node: ast.expr, frame: FrameType) -> str:
    """Return the kind of work of torch's function, method or operation with this name."""
    kind = OF_TORCH.get(name) or kind_of(module)
    if kind == "copy" and _is_to_host(node, frame):
        return "sync"
    if not isinstance(node, ast.Call):
        return kind
    if name in ("tensor", "as_tensor") and any(each.arg == "device" for each in node.keywords):
        return "torch" if _is_to_host(node, frame) else "copy"
    selects = name == "where" and len(node.args) + len(node.keywords) == 1
    if (selects or name in NEED_VALUES) and is_on_gpu(node, frame):
        return "sync"
    return kind


def _may_be_tensor(method: ast.Attribute, frame: FrameType) -> bool:
    """Return whether a method is called on what the user's own code returned or keeps."""
    if _looked_up(method.value, frame) is not None:
        return False
    module = _owner(method.value, frame)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module in ("", "__main__") or (file is not None and is_users(file))


def _writes_from_gpu(node: ast.expr, frame: FrameType) -> bool:
    """Return whether text is filled in with `%` from tensors that are on a GPU."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    text = node.left.value if isinstance(node.left, ast.Constant) else _looked_up(node.left, frame)
    if not isinstance(text, str):
        return False
    filled_in = _looked_up(node.right, frame)
    several = filled_in if isinstance(filled_in, tuple) else ()  # as `logging` keeps them
    return is_on_gpu(node.right, frame) or any(map(_lies_on_gpu, several))


def is_on_gpu(node: ast.expr, frame: FrameType) -> bool:
    """Return whether an expression names a tensor that is not in the host's memory."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return False  # that looks at no value
    return any(tensor_on_gpu(each, frame) is not None for each in ast.walk(node))


def value_on_gpu(node: ast.AST, frame: FrameType) -> bool:
    """Return whether the value of an expression is on a GPU, as is that of `loss < best`."""
    function = node.func if isinstance(node, ast.Call) else node
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in KNOWN or name.startswith(("is_", "has_")):
        return False
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return False  # that looks at no value
    if isinstance(node, ast.Call) and kind_of_node(node, frame) not in ("torch", "forward"):
        return False
    if tensor_on_gpu(node, frame) is not None:
        return True
    return any(value_on_gpu(each, frame) for each in ast.iter_child_nodes(node))


def tensor_on_gpu(node: ast.AST, frame: FrameType) -> object | None:
    """Return the tensor that a name stands for, if it is not in the host's memory."""
    found = _looked_up(node, frame)
    return found if _lies_on_gpu(found) else None


def _lies_on_gpu(value: object) -> bool:
    is_tensor = hasattr(type(value), "is_cpu")  # the class is asked: it runs no `__getattr__`
    return is_tensor and getattr(value, "is_cpu", True) is False


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
    """Return the object that a name stands for, or what that object keeps under another name.

    None where it is unknown, as what only the user's own code could tell.
    """
    if isinstance(node, ast.Name):
        for names in (locals_of(frame), frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, frame)
        if isinstance(owner, (ModuleType, type)):
            return vars(owner).get(node.attr)
        return _attribute(owner, node.attr)
    elif isinstance(node, ast.Subscript):
        return _entry(_looked_up(node.value, frame), _key(node.slice, frame))
    return None


def _attribute(owner: object, name: str) -> object:
    """Return what an object keeps as an attribute; of a module of torch, a weight as well."""
    kept = _kept(owner)
    for names in (kept, kept.get("_parameters"), kept.get("_buffers"), kept.get("_modules")):
        if type(names) is dict and name in names:
            return names[name]
    return None


def _kept(owner: object) -> dict[str, object]:
    with contextlib.suppress(AttributeError, TypeError):
        kept = object.__getattribute__(owner, "__dict__")
        if type(kept) is dict:
            return kept
    return {}


def _key(node: ast.AST, frame: FrameType) -> str | int | None:
    """Return an index that is written down, or that a variable holds; None for all others."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign = -1
        node = node.operand
    key = node.value if isinstance(node, ast.Constant) else _looked_up(node, frame)
    if type(key) is int:
        return sign * key
    return key if type(key) is str else None


def _entry(container: object, key: str | int | None) -> object:
    """Return what a container keeps under `key`; one of the user's own class is not asked."""
    if is_a(
        container, "collections", "UserDict"
    ):  # as are the batches of Hugging Face's tokenizers
        container = _kept(container).get("data")
    if isinstance(container, dict):
        return dict.get(container, key)
    if isinstance(key, int) and (type(container) is list or type(container) is tuple):
        with contextlib.suppress(IndexError):
            return container[key]
    return None
