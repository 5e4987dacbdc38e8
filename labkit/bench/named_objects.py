"""Which object does an expression name, and of which module is it? No code of the user's is run."""

from __future__ import annotations

import ast
import contextlib
from types import FrameType, ModuleType

from labkit.bench.stack import is_a, locals_of


def owner(node: ast.expr, frame: FrameType) -> str:
    """Return the module that what `node` evaluates to belongs to; "" where that is not known."""
    found = looked_up(node, frame)
    if is_a(found, "torch", "Tensor"):  # of a subclass too
        return "torch"
    if found is not None:
        is_named = isinstance(found, ModuleType) or callable(found)
        own = found if is_named and not hasattr(type(found), "forward") else type(found)
        name = getattr(own, "__module__", None) or getattr(own, "__name__", "")
        return name if isinstance(name, str) else ""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return owner(node.value, frame)
    if isinstance(node, ast.Call):
        return owner(node.func, frame)
    if isinstance(node, ast.UnaryOp):
        return owner(node.operand, frame)
    if isinstance(node, ast.BinOp):
        return owner(node.left, frame) or owner(node.right, frame)
    if isinstance(node, ast.Compare):
        compared = [owner(each, frame) for each in (node.left, *node.comparators)]
        return next((module for module in compared if module.startswith("torch")), compared[0])
    return ""


def looked_up(node: ast.AST, frame: FrameType) -> object:
    """Return the object that a name stands for, or what that object keeps under another name.

    None where it is unknown, as what only the user's own code could tell.
    """
    if isinstance(node, ast.Name):
        for names in (locals_of(frame), frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        holder = looked_up(node.value, frame)
        if isinstance(holder, (ModuleType, type)):
            return vars(holder).get(node.attr)
        return _attribute(holder, node.attr)
    elif isinstance(node, ast.Subscript):
        return _entry(looked_up(node.value, frame), _key(node.slice, frame))
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
    key = node.value if isinstance(node, ast.Constant) else looked_up(node, frame)
    if type(key) is int:
        return sign * key
    return key if type(key) is str else None


def _entry(container: object, key: str | int | None) -> object:
    """Return what a container keeps under `key`; one of the user's own class is not asked."""
    if is_a(container, "collections", "UserDict"):  # a batch of Hugging Face's tokenizers is one
        container = _kept(container).get("data")
    if isinstance(container, dict):
        return dict.get(container, key)
    if isinstance(key, int) and (type(container) is list or type(container) is tuple):
        with contextlib.suppress(IndexError):
            return container[key]
    return None
