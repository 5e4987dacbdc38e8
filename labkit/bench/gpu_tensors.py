"""Does an expression name a tensor that lies on a GPU?"""

from __future__ import annotations

import ast
from types import FrameType

from labkit.bench.named_objects import looked_up


def is_on_gpu(node: ast.expr, frame: FrameType) -> bool:
    """Return whether an expression names a tensor that is not in the host's memory."""
    if is_identity(node):
        return False
    return any(tensor_on_gpu(each, frame) is not None for each in ast.walk(node))


def tensor_on_gpu(node: ast.AST, frame: FrameType) -> object | None:
    """Return the tensor that a name stands for, if it is not in the host's memory."""
    found = looked_up(node, frame)
    return found if lies_on_gpu(found) else None


def lies_on_gpu(value: object) -> bool:
    """Return whether it is a tensor outside the host's memory."""
    is_tensor = hasattr(type(value), "is_cpu")  # the class is asked: it runs no `__getattr__`
    return is_tensor and getattr(value, "is_cpu", True) is False


def is_identity(node: ast.AST) -> bool:
    """Return whether an expression asks `is` or `is not`: that looks at no value."""
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot))
