"""Which objects does an expression name, and of which module? No code of the user's is run."""

from __future__ import annotations

import re
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType

from labkit.bench.batch_contents import parts_of
from labkit.bench.before_calls import held
from labkit.bench.stack import is_a, locals_of

PATH = re.compile(r"(?<![\w.'])[A-Za-z_]\w*(?:\.\w+)*")  # names with dots
WEIGHTS = (
    "_parameters",
    "_buffers",
    "_modules",
)  # where torch's modules keep them
NAMED = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)


def module_named(text: str, frame: FrameType) -> str:
    """Return the module of what an expression names first; torch's, if anything is of that."""
    first = ""
    for path in PATH.findall(text):
        modules = [*filter(None, map(module_of, objects_along(path, frame)))]
        if "torch" in (module.split(".")[0] for module in modules):
            return "torch"
        first = first or (modules[-1] if modules else "")
    return first


def module_of(value: object) -> str:
    """Return the module that an object, or a container's first tensor, is of; "" where unknown."""
    inside = [part for _, part in parts_of(value) or ()][:8]
    if any(is_a(each, "torch", "Tensor") for each in (value, *inside)):
        return "torch"  # of a subclass too
    own = value if issubclass(type(value), NAMED) else type(value)
    name = getattr(own, "__module__", None) or getattr(own, "__name__", "")
    return name if isinstance(name, str) else ""


def objects_along(path: str, frame: FrameType) -> list[object]:
    """Return the objects that a path of names leads to, as `self.net.weight`, as far as known."""
    name, *attributes = path.split(".")
    scopes = (locals_of(frame), frame.f_globals, frame.f_builtins)
    found = [scope[name] for scope in scopes if name in scope][:1]
    for attribute in attributes if found else ():
        holder = found[-1]
        named = issubclass(type(holder), (ModuleType, type))  # no object is asked for its class
        kept = dict(vars(holder)) if named else held(holder)
        places = (kept, *(kept.get(part) for part in WEIGHTS))
        known = [each[attribute] for each in places if type(each) is dict and attribute in each]
        if not known:
            break
        found.append(known[0])
    return found


def looked_up(path: str, frame: FrameType) -> object:
    """Return the object that a path of names leads to; None where it is not known."""
    found = objects_along(path, frame)
    return found[-1] if len(found) == len(path.split(".")) else None
