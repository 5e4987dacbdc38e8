"""Which kind of work does a frame do at the moment? By its module, and by the names in its line."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType

from labkit.instruments.before_calls import held
from labkit.instruments.stack import is_a, locals_of, module_of_frame, text_of

KINDS = {  # of work, by the modules that do it; the longest prefix of a module's name counts
    "forward": "torch.nn torchvision.models",
    "optimizer": "torch.optim torch.nn.utils.clip_grad torch.amp",
    "torch": "torch torch.nn.parameter torch.nn.utils triton",
    "exchange": "torch.distributed",
    "loader": "torch.utils.data",
    "checkpoint": "torch.serialization",
    "logging": "logging torch.utils.tensorboard tensorboard tensorboardX wandb mlflow tqdm csv",
    "io": "io _io os posix codecs shutil pickle _pickle sqlite3 _sqlite3 h5py",
    "wait": "threading _thread queue _queue select selectors multiprocessing "
    "torch.multiprocessing subprocess socket ssl urllib http requests concurrent",
    "proxy": "multiprocessing.managers",
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
    "load_state_dict": "torch",
    "zero_grad": "optimizer",
}
SAVES = re.compile(  # a line that calls what writes, by its name
    r"(^|[\s._])(save|savefig|imsave|imwrite|dump|to_(csv|json|parquet|pickle)|write\w*|"
    r"add_(scalar|image|histogram|figure|text)s?|log_(metric|artifact)s?)\("
)
OF_PYTHON = {"print": "logging", "open": "io", "input": "wait", "sleep": "wait"}
PATH = re.compile(r"(?<![\w.'])[A-Za-z_]\w*(?:\.\w+)*")  # names with dots
CALLED = re.compile(r"([\w.]+)\(")
TO_NUMBER = ("float", "int", "bool")  # of Python's own: they read a tensor's value
WEIGHTS = ("_parameters", "_buffers", "_modules")  # where torch's modules keep them
NAMED = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)


@functools.lru_cache(4096)
def kind_of(module: str) -> str:
    """Return the kind of work that a module does; "" where its name does not tell."""
    while module and module not in KIND_OF:
        module = module.rpartition(".")[0]
    return KIND_OF.get(module, "")


def kind_of_calls(frames: Iterable[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first; the last has the say.

    Where their modules do not tell, the line of the deepest may: a package sends a batch to a GPU.
    """
    kind = ""
    deepest = None
    for frame in frames:
        deepest = deepest or frame
        module = module_of_frame(frame)
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        outer = special or kind_of(module)
        hands_on = frame.f_code.co_flags & inspect.CO_GENERATOR  # as `tqdm(loader)` does
        kind = kind if kind and hands_on else outer or kind or "library"
    if deepest is None or kind != "library":
        return kind
    of_line = kind_of_line(deepest)
    return kind if of_line == "python" else of_line


def kind_of_line(frame: FrameType) -> str:
    """Return the kind of work of the line that a frame is at.

    What it calls there is built in, or it would have a frame of its own: so its name tells, and
    whose objects the line names.
    """
    text = text_of(frame)
    called = {name.rpartition(".")[2]: name for name in CALLED.findall(text)}
    modules = [
        module_of(each) for path in PATH.findall(text) for each in objects_along(path, frame)
    ]
    if any(module.split(".")[0] == "torch" for module in modules):
        if any(name in TO_NUMBER for name in called.values()):
            return "sync"
        kinds = map((OF_PYTHON | OF_TORCH).get, called)
        return next(filter(None, kinds), "torch")
    kinds = (*map(OF_PYTHON.get, called), *map(kind_of, modules))
    return next(filter(None, kinds), "logging" if SAVES.search(text) else "python")


def module_of(value: object) -> str:
    """Return the module that an object is of; "" where unknown."""
    if is_a(value, "torch", "Tensor"):
        return "torch"  # of a subclass too
    own = value if issubclass(type(value), NAMED) else type(value)
    name = getattr(own, "__module__", None) or getattr(own, "__name__", "")
    return name if isinstance(name, str) else ""


def objects_along(path: str, frame: FrameType) -> list[object]:
    """Return the objects that a path of names leads to, as `self.net.weight`, as far as known.

    No code of the user's is run.
    """
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
