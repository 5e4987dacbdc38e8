"""A user's DataLoader as the call that makes it, in the names of the user's own script.

An object is written as the variable that holds it, else as an attribute of the loader. Nothing here
imports torch or runs the user's code.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType, ModuleType
from typing import Any

from labkit.bench.stack import is_users, loop_around

PLAIN = ("batch_size", "drop_last", "num_workers", "prefetch_factor", "persistent_workers",
         "pin_memory", "pin_memory_device", "timeout", "in_order")  # fmt: skip
DEFAULTS = {
    "batch_size": 1, "drop_last": False, "num_workers": 0, "prefetch_factor": None,
    "persistent_workers": False, "pin_memory": False, "pin_memory_device": "", "timeout": 0,
    "in_order": True,
}  # fmt: skip
PYTORCH_PREFETCH = 2  # where there are workers and nothing is said


def call_of(loader: Any, model: Any = None, optimizer: Any = None) -> dict[str, Any]:
    """Return what is known of the code around `loader`, seen from the user's frame that calls us.

    Returns:
        `loader`, `model` and `optimizer`: the variables that hold them, None where there is none
        (the two last are looked for by their type where they are not given); `training`: the one
        with Hugging Face's TrainingArguments; `dataset_type`: its class; `call`: what the script
        calls to make a loader, "" where it has no name for torch's DataLoader; `arguments`:
        {name: code}, defaults left out, the code None where the script has no name for the object.
        `call` and `arguments` are None where the loader is no DataLoader, or is made inside a
        framework.
    """
    frame = _user_frame(loader)
    names = Names(frame)
    found = {
        "loader": names.of(loader),
        "model": names.only("torch.nn", "Module", model),
        "optimizer": names.only("torch.optim", "Optimizer", optimizer),
        "training": names.only("transformers", "TrainingArguments", None),
        "dataset_type": type(getattr(loader, "dataset", None)).__name__,
        "call": None,
        "arguments": None,
    }
    data = sys.modules.get("torch.utils.data")
    ours = found["loader"] or not loop_around(sys._getframe(1))[1]
    if data is None or not isinstance(loader, data.DataLoader) or not ours:
        return found
    call = names.of_class(type(loader))
    if call is not None:
        found |= {"call": call, "arguments": _arguments(loader, names, data)}
    return found


def call_with(
    dataset: Any, collate_fn: Any = None, model: Any = None, optimizer: Any = None
) -> dict[str, Any]:
    """Return, as `call_of` does, a call that makes a shuffling loader of a dataset."""
    names = Names(_user_frame(dataset))
    data = sys.modules.get("torch.utils.data")
    arguments = {"dataset": names.of(dataset)}
    if collate_fn is not None:
        named = collate_fn.rpartition(":")[2] if isinstance(collate_fn, str) else None
        arguments["collate_fn"] = named or names.of(collate_fn)
    streams = data is not None and isinstance(dataset, data.IterableDataset)
    if not streams and not isinstance(dataset, str):
        arguments["shuffle"] = "True"
    return {
        "loader": None,
        "model": names.only("torch.nn", "Module", model),
        "optimizer": names.only("torch.optim", "Optimizer", optimizer),
        "call": names.of_class(data.DataLoader) if data is not None else "",
        "arguments": arguments,
    }


def _arguments(loader: Any, names: Names, data: ModuleType) -> dict[str, str | None]:
    """Return the arguments of a DataLoader that are not PyTorch's defaults, as code."""
    objects = {"dataset": loader.dataset}
    plain = [name for name in PLAIN if getattr(loader, name, DEFAULTS[name]) != DEFAULTS[name]]
    collate = data._utils.collate
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
    if own_batches:
        objects["batch_sampler"] = loader.batch_sampler
        plain.remove("batch_size")
        if "drop_last" in plain:
            plain.remove("drop_last")
    shuffle = not own_batches and _is_shuffle(loader, data)
    streams = isinstance(loader.dataset, data.IterableDataset)
    in_order = type(loader.sampler) is data.SequentialSampler
    if not (own_batches or streams or shuffle or in_order):
        objects["sampler"] = loader.sampler
    if loader.collate_fn not in (collate.default_collate, collate.default_convert):
        objects["collate_fn"] = loader.collate_fn
    for name in ("generator", "worker_init_fn"):
        if getattr(loader, name) is not None:
            objects[name] = getattr(loader, name)
    code = {name: names.of_part(loader, name, part) for name, part in objects.items()}
    code |= {"shuffle": "True"} if shuffle else {}
    code |= {name: repr(getattr(loader, name)) for name in plain}
    if loader.prefetch_factor == PYTORCH_PREFETCH:
        del code["prefetch_factor"]
    if context := loader.multiprocessing_context:
        code["multiprocessing_context"] = repr(context.get_start_method())
    return code


def _is_shuffle(loader: Any, data: ModuleType) -> bool:
    """Return whether shuffle=True makes the loader's sampler."""
    sampler = loader.sampler
    return (
        type(sampler) is data.RandomSampler
        and sampler.data_source is loader.dataset
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is loader.generator
    )


class Names:
    """The variables that a user's frame sees, by the objects that they hold."""

    def __init__(self, frame: FrameType | None):
        self.values = variables(frame) if frame is not None else {}
        self.by_id = {id(value): name for name, value in self.values.items()}

    def of(self, part: Any) -> str | None:
        """Return the name of an object, of a method as `name.method`; None where it has none."""
        if inspect.ismethod(part):
            owner = self.of(part.__self__)
            return owner and f"{owner}.{part.__name__}"
        return self.by_id.get(id(part))

    def of_part(self, loader: Any, name: str, part: Any) -> str | None:
        """Return the code for the argument `name` of `loader`."""
        if found := self.of(part):
            return found
        if owner := self.of(loader):
            return f"{owner}.{name}"
        if name == "generator" and str(part.device) == "cpu" and "torch" in self.values:
            return f"torch.Generator().manual_seed({part.initial_seed()})"
        return None

    def of_class(self, kind: type) -> str | None:
        """Return what the script calls a class of DataLoaders: "" for torch's without a name."""
        if found := self.of(kind):
            return found
        data = sys.modules["torch.utils.data"]
        if kind is not data.DataLoader:
            return None
        for module, path in ((data, ""), (sys.modules["torch"], "utils.data.")):
            if name := self.of(module):
                return f"{name}.{path}DataLoader"
        return ""

    def only(self, module: str, kind: str, given: Any) -> str | None:
        """Return the name of `given`, else of the one variable of a kind, where there is one."""
        if given is not None:
            return self.of(given)
        found = getattr(sys.modules.get(module), kind, None)
        held = {
            id(value): name
            for name, value in self.values.items()
            if found and issubclass(type(value), found)
        }
        return next(iter(held.values())) if len(held) == 1 else None


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables that code in a frame can name, and what `self` holds, as `self.name`."""
    local = frame.f_locals
    found = {**frame.f_globals, **local}
    owner = local.get("self")
    # Before Python 3.13 a function's frame keeps this copy, and all that it holds, to its end
    kept = type(local) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if kept and sys.getrefcount(local) <= 3:  # nobody else's: not what the user's locals() gave
        local.clear()
    if hasattr(owner, "__dict__"):
        found |= {f"self.{name}": value for name, value in vars(owner).items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _user_frame(part: Any) -> FrameType | None:
    """Return the outermost frame of the user's code that names `part`, else the innermost."""
    frame = sys._getframe(2)
    innermost = named = None
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            innermost = innermost or frame
            if any(value is part for value in variables(frame).values()):
                named = frame
        frame = frame.f_back
    return named or innermost
