"""Which kind of work does a frame do at the moment, and by which call? No user's code is run."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from types import FrameType

from labkit.bench import gpu_tensors
from labkit.bench.expressions import call_text, expression, name_of
from labkit.bench.kind_names import (
    INNER_SYNC,
    OF_BUILTINS,
    OF_TENSORS,
    OF_TORCH,
    SAVES,
    TRAINING,
    kind_of,
)
from labkit.bench.named_objects import looked_up, owner
from labkit.bench.stack import is_a, is_gpu_in_use, is_users, module_of_frame

# Of a tensor on a GPU these have to know its values, and wait for them
NEED_VALUES = frozenset(
    ["masked_select", "equal", "allclose", "bincount", "repeat_interleave"]
    + ["unique", "_unique2", "unique_dim", "unique_consecutive"]
)
BUILTINS_NEED_VALUES = frozenset(["min", "max", "any", "all", "range", "round"])
WRITTEN = frozenset(["__format__", "__repr__"])  # how a tensor is written, in torch._tensor
# What is known of a tensor without a look at its values
KNOWN = frozenset(
    ["dim", "ndim", "nelement", "numel", "shape", "size", "stride"]
    + ["device", "dtype", "grad_fn", "layout", "names", "requires_grad"]
)


def kind_of_calls(frames: Iterable[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first; the last has the say.

    Not where the deepest asks torch for something that takes a GPU: a logger that reads a tensor
    waits for all that is queued, and so does the optimizer's loss scaler, or a package that asks
    whether a loss is finite; and a package that sends a batch to the device copies it.
    """
    kind = ""
    deepest = None
    for frame in frames:
        deepest = deepest or frame
        module = module_of_frame(frame)
        writes = module == "torch._tensor" and frame.f_code.co_name in WRITTEN
        if writes and gpu_tensors.tensor_on_gpu(ast.Name("self"), frame) is not None:
            return "sync"
        if module == "logging" and _logs_from_gpu(frame):
            return "sync"
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        outer = special or kind_of(module)
        hands_on = frame.f_code.co_flags & inspect.CO_GENERATOR  # as `tqdm(loader)` does
        closes = outer == "optimizer" and kind in ("forward", "backward")  # `step(closure)`
        kind = kind if kind and (hands_on or closes) else outer or kind or "library"
    if deepest is None or kind == "checkpoint":  # which reads what it saves
        return kind
    return _kind_of_gpu_call(deepest, kind) or kind


def _kind_of_gpu_call(frame: FrameType, around: str) -> str:
    """Return the kind of what a frame of a library asks of a GPU; "" where it asks nothing.

    `around` is the kind of the library's work.
    """
    node = expression(frame)
    if node is None:
        return ""
    if around in ("library", "logging") and _writes_from_gpu(node, frame):
        return "sync"
    if kind_and_call(frame)[0] == "sync":
        wait = INNER_SYNC if around in TRAINING else "sync"
        return wait if gpu_tensors.is_on_gpu(node, frame) else ""
    kind = kind_of_torch_call(frame) if around == "library" else ""
    if kind == "copy" and is_gpu_in_use():  # no conversion, as far as the arguments are known
        return kind
    return kind if gpu_tensors.is_on_gpu(node, frame) else ""


def kind_and_call(frame: FrameType) -> tuple[str, str]:
    """Return what the user's own code does at the moment: ("sync", "loss.item()")."""
    node = expression(frame)
    if node is None:
        return "python", ""
    if not isinstance(node, (ast.Call, ast.BinOp)) and not gpu_tensors.is_on_gpu(node, frame):
        return "python", ""  # a loop over the elements of a tensor in RAM is Python's
    kind = kind_of_node(node, frame)
    text = call_text(node)
    return "logging" if kind == "library" and SAVES.search(text) else kind, text


def kind_of_node(node: ast.expr, frame: FrameType) -> str:
    """Return the kind of work of a call, or of an operation on tensors."""
    if _writes_from_gpu(node, frame):
        return "sync"
    function = node.func if isinstance(node, ast.Call) else node
    name = name_of(function)
    module = owner(function, frame)
    if module.split(".")[0] == "torch":
        return _kind_in_torch(name, module, node, frame)
    # Of a library's object too: a `BatchEncoding` finds its tensors when asked for them
    of_tensor = isinstance(function, ast.Attribute) and (
        _device_named(node, frame) is not None or _may_be_tensor(function, frame)
    )
    if name in OF_TENSORS and of_tensor:
        return _kind_in_torch(name, "torch", node, frame)
    if module in ("builtins", "math"):
        if _reads_values(name, module, node, frame):
            return "sync"
        return OF_BUILTINS.get(name, "python") if module == "builtins" else "python"
    if module == "time" and name != "sleep":
        return "python"  # a clock: what took the time came before
    return (kind_of(module) or "library") if module else "python"


def _reads_values(name: str, module: str, node: ast.expr, frame: FrameType) -> bool:
    """Return whether a function of Python's own has to know the values of tensors on a GPU."""
    arguments = getattr(node, "args", ())
    if name in ("float", "int", "bool"):
        return any(owner(argument, frame).startswith("torch") for argument in arguments)
    needs = module == "math" or name in BUILTINS_NEED_VALUES
    return needs and any(value_on_gpu(argument, frame) for argument in arguments)


def _kind_in_torch(name: str, module: str, node: ast.expr, frame: FrameType) -> str:
    """Return the kind of work of torch's function, method or operation with this name."""
    kind = OF_TORCH.get(name) or kind_of(module)
    if kind == "copy":
        if _converts(node, frame):
            return "torch"
        return "sync" if _is_to_host(node, frame) else kind
    if not isinstance(node, ast.Call):
        return kind
    if name in ("tensor", "as_tensor") and any(each.arg == "device" for each in node.keywords):
        return "torch" if _is_to_host(node, frame) else "copy"
    selects = name == "where" and len(node.args) + len(node.keywords) == 1
    if (selects or name in NEED_VALUES) and gpu_tensors.is_on_gpu(node, frame):
        return "sync"
    return kind


def _logs_from_gpu(frame: FrameType) -> bool:
    """Return whether a logger is at a message that has to be filled in from tensors on a GPU."""
    record = looked_up(ast.Name("record"), frame)
    if not is_a(record, "logging", "LogRecord"):
        return False
    filled_in = getattr(record, "args", None)
    return any(map(gpu_tensors.lies_on_gpu, filled_in if isinstance(filled_in, tuple) else ()))


def _may_be_tensor(method: ast.Attribute, frame: FrameType) -> bool:
    """Return whether a method is called on what the user's own code returned or keeps."""
    if looked_up(method.value, frame) is not None:
        return False
    module = owner(method.value, frame)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module in ("", "__main__") or (file is not None and is_users(file))


def _writes_from_gpu(node: ast.expr, frame: FrameType) -> bool:
    """Return whether text is filled in with `%` from tensors that are on a GPU."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    text = node.left.value if isinstance(node.left, ast.Constant) else looked_up(node.left, frame)
    if not isinstance(text, str):
        return False
    filled_in = looked_up(node.right, frame)
    several = filled_in if isinstance(filled_in, tuple) else ()  # as `logging` keeps them
    return gpu_tensors.is_on_gpu(node.right, frame) or any(map(gpu_tensors.lies_on_gpu, several))


def value_on_gpu(node: ast.AST, frame: FrameType) -> bool:
    """Return whether the value of an expression is on a GPU, as is that of `loss < best`."""
    function = node.func if isinstance(node, ast.Call) else node
    name = name_of(function)
    if name in KNOWN or name.startswith(("is_", "has_")) or gpu_tensors.is_identity(node):
        return False
    if isinstance(node, ast.Call) and kind_of_node(node, frame) not in ("torch", "forward"):
        return False
    if gpu_tensors.tensor_on_gpu(node, frame) is not None:
        return True
    return any(value_on_gpu(each, frame) for each in ast.iter_child_nodes(node))


def _is_to_host(node: ast.expr, frame: FrameType) -> bool:
    """Return whether a call copies to the CPU: `loss.to("cpu")`, or a device's name in its place.

    Such a copy waits until the device is through with the tensor.
    """
    return _device_named(node, frame) == "cpu"


def _device_named(node: ast.expr, frame: FrameType) -> str | None:
    """Return the device that a call names: "cpu", "cuda:0", a GPU's number; None without one."""
    for value in _arguments(node, frame):
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number or isinstance(value, str) or is_a(value, "torch", "device"):
            return str(value)
    return None


def _converts(node: ast.expr, frame: FrameType) -> bool:
    """Return whether a call of `to` changes the number format only: no argument may be a device."""
    if not isinstance(node, ast.Call) or name_of(node.func) != "to":
        return False
    return all(
        isinstance(value, bool)
        or is_a(value, "torch", "dtype")
        or is_a(value, "torch", "memory_format")
        for value in _arguments(node, frame)
    )


def _arguments(node: ast.expr, frame: FrameType) -> list[object]:
    """Return a call's arguments, as far as they are written out or have a name; else None."""
    if not isinstance(node, ast.Call):
        return []
    found: list[object] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            several = looked_up(each.value, frame)
            found += several if isinstance(several, tuple) else [None]
        else:
            found.append(_value(each, frame))
    for keyword in node.keywords:
        value = _value(keyword.value, frame)
        if keyword.arg is None:
            found += value.values() if type(value) is dict else [None]
        else:
            found.append(value)
    return found


def _value(node: ast.expr, frame: FrameType) -> object:
    return node.value if isinstance(node, ast.Constant) else looked_up(node, frame)


def kind_of_torch_call(frame: FrameType) -> str:
    """Return the kind of a call that a frame makes into torch; "" where it makes another."""
    node = expression(frame)
    function = node.func if isinstance(node, ast.Call) else node
    is_torch = function is not None and owner(function, frame).split(".")[0] == "torch"
    return kind_and_call(frame)[0] if is_torch else ""
