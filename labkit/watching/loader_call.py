"""A user's DataLoader as the call that makes it, in the names of the user's own script.

An object is written as the variable that holds it, else as an attribute of the loader. Nothing here
imports torch or runs the user's code.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from types import FrameType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from labkit.bench.before_calls import held
from labkit.bench.loader_knobs import torch_loader
from labkit.bench.model_parts import (
    cards_of,
    has_own_forward,
    is_compiled,
    is_compiled_step,
    is_trained,
    parts_of,
)
from labkit.bench.stack import is_a, is_users, kept_by_class, loop_around, variables
from labkit.spec import LOADER_KNOBS, PYTORCH_PREFETCH

if TYPE_CHECKING:
    import torch

PLAIN_ADAMW = "adamw_torch"  # an `optim` of TrainingArguments; with "_fused" the same, but fused
PLAIN = (*LOADER_KNOBS, "drop_last", "pin_memory_device", "timeout", "in_order")
SIMPLE = (bool, int, float, str, type(None))


def call_of(loader: object, model: object = None) -> dict[str, object]:
    """Return what is known of the code around `loader`, seen from the user's frame that calls us.

    Returns:
        `loader`, `model` and `optimizer`: the variables that hold them, None where there is none
        (the two last are looked for by their type, a model where none is given); `training`: the
        one with Hugging Face's TrainingArguments; `dataset_type`: its class; `epoch_setter`: the
        one of it and its samplers that has a `set_epoch`; `streams`: whether it is an
        IterableDataset;
        `may_fuse`: as `may_fuse()` says of the optimizer; `is_compiled`: whether torch.compile has
        the model, or one that the script names, or a step of it; `compiles_in_place`: whether
        `model.compile()` is known to compile it; `cards`: how many one process trains on; `call`:
        what the script calls to make a loader, "" where it has no name for torch's DataLoader;
        `arguments`: {name: code}, defaults left out, the code None where the script has no name for
        the object. `call` and `arguments` are None where the loader is no DataLoader, or is made
        inside a framework.
    """
    names = Names(_user_frame(loader))
    named = names.of_model(model)
    models = names.models() if model is None else [model]
    parts = ("dataset", "sampler", "batch_sampler")
    kinds = [type(held(torch_loader(loader)).get(part)) for part in parts]
    data = sys.modules.get("torch.utils.data")
    found = {
        "loader": names.of(loader),
        "model": named,
        "optimizer": names.only("torch.optim", "Optimizer"),
        "training": names.only("transformers", "TrainingArguments"),
        "dataset_type": kinds[0].__name__,
        "epoch_setter": next(
            (each.__name__ for each in kinds if kept_by_class(each, "set_epoch")), None
        ),
        "streams": data is not None and issubclass(kinds[0], data.IterableDataset),
        "may_fuse": None,
        "is_compiled": any(map(is_compiled, models)) or names.have_compiled_step(models),
        "compiles_in_place": has_own_forward(names.values.get(named or "", model)),
        "cards": max(map(cards_of, models), default=1),
        "call": None,
        "arguments": None,
    }
    if found["optimizer"] is not None:
        found["may_fuse"] = may_fuse(names.values[found["optimizer"]])
    trainer = trainer_frame()
    if trainer is not None:  # it compiles and makes an optimizer out of the script's sight
        asked = variables(trainer).get("self.args")
        kept = held(asked)
        found["is_compiled"] |= kept.get("torch_compile") is True
        optim = kept.get("optim")
        found["may_fuse"] = getattr(optim, "value", optim) == PLAIN_ADAMW
        # it makes an nn.DataParallel
        found["cards"] = max(1, kept.get("n_gpu", kept.get("_n_gpu", 1)))
    if found["cards"] > 1:  # whose threads no compiler reaches (pytorch/pytorch#94636)
        found["is_compiled"] = False
    ours = found["loader"] or not loop_around(sys._getframe(1))[1]
    if data is None or not is_a(loader, "torch.utils.data", "DataLoader") or not ours:
        return found
    call = names.of_class(type(loader))
    if call is not None:
        found |= {"call": call, "arguments": _arguments(loader, names, data)}
    return found


def trainer_frame() -> FrameType | None:
    """Return the frame of Hugging Face's Trainer that calls us; None without one."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    inside = (each for each in frames if each.f_globals.get("__name__") == "transformers.trainer")
    return next(inside, None)


def call_with(dataset: object, collate_fn: object = None) -> dict[str, object]:
    """Return, as `call_of` does, a call that makes a shuffling loader of a dataset."""
    names = Names(_user_frame(dataset))
    data = sys.modules.get("torch.utils.data")
    arguments = {"dataset": names.of(dataset)}
    if collate_fn is not None:
        arguments["collate_fn"] = names.of(collate_fn)
    if not is_a(dataset, "torch.utils.data", "IterableDataset") and not isinstance(dataset, str):
        arguments["shuffle"] = "True"
    return {
        "call": names.of_class(data.DataLoader) if data is not None else "",
        "arguments": arguments,
    }


def may_fuse(optimizer: object) -> bool | None:
    """Return whether an optimizer has a fused version that is not in use; None if it is unknown."""
    defaults = held(optimizer).get("defaults")
    groups = held(optimizer).get("param_groups")
    if type(defaults) is not dict or type(groups) is not list:
        return None
    return "fused" in defaults and not any(dict.get(group, "fused") is True for group in groups)


def _arguments(loader: object, names: Names, data: ModuleType) -> dict[str, str | None]:
    """Return the arguments of a DataLoader that are not PyTorch's defaults, as code."""
    defaults = inspect.signature(data.DataLoader).parameters
    kept = held(loader)
    values = {name: kept.get(name, defaults[name].default) for name in PLAIN}
    dataset = kept.get("dataset")
    objects: dict[str, object] = {"dataset": dataset}
    shuffles = False
    if values["batch_size"] is None and kept.get("batch_sampler") is not None:
        objects["batch_sampler"] = kept["batch_sampler"]
        del values["batch_size"], values["drop_last"]
    else:
        shuffles = _is_shuffle(kept, data)
        streams = is_a(dataset, "torch.utils.data", "IterableDataset")
        if not (streams or shuffles or type(kept.get("sampler")) is data.SequentialSampler):
            objects["sampler"] = kept.get("sampler")
    collate = data._utils.collate
    plain = (collate.default_collate, collate.default_convert)
    if not any(kept.get("collate_fn") is each for each in plain):
        objects["collate_fn"] = kept.get("collate_fn")
    for name in ("generator", "worker_init_fn"):
        if kept.get(name) is not None:
            objects[name] = kept[name]
    objects |= {name: part for name, part in values.items() if type(part) not in SIMPLE}
    code = {name: names.of_part(loader, name, part) for name, part in objects.items()}
    if shuffles:
        code["shuffle"] = "True"
    for name, value in values.items():
        is_usual = name == "prefetch_factor" and value == PYTORCH_PREFETCH
        if name not in objects and not is_usual and value != defaults[name].default:
            code[name] = repr(value)
    context: Any = kept.get("_DataLoader__multiprocessing_context")
    if is_a(context, "multiprocessing.context", "BaseContext"):
        code["multiprocessing_context"] = repr(context.get_start_method())
    return code


def _is_shuffle(kept: dict[str, Any], data: ModuleType) -> bool:
    """Return whether shuffle=True makes the sampler of a loader that has `kept` these parts."""
    sampler: Any = kept.get("sampler")
    return (
        type(sampler) is data.RandomSampler
        and sampler.data_source is kept.get("dataset")
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is kept.get("generator")
    )


class Names:
    """The variables that a user's frame sees, by the objects that they hold."""

    def __init__(self, frame: FrameType | None):
        self.values = _named(frame) if frame is not None else {}
        # Of several names the first: `model`, and not a later `raw_model = model`
        self.by_id = {id(value): name for name, value in reversed(self.values.items())}

    def of(self, part: object) -> str | None:
        """Return the name of an object, of a method as `name.method`; None where it has none.

        A text has none: "module:function" stands for what it names.
        """
        if type(part) is str:
            return None
        if type(part) is MethodType:
            owner = self.of(part.__self__)
            return owner and f"{owner}.{part.__name__}"
        return self.by_id.get(id(part))

    def of_part(self, loader: object, name: str, part: object) -> str | None:
        """Return the code for the argument `name` of `loader`."""
        owner = self.of(loader)
        code = self.of(part) or (owner and f"{owner}.{name}")
        if code or name != "generator" or not is_a(part, "torch", "Generator"):
            return code
        made = cast("torch.Generator", part)
        if made.device.type == "cpu" and "torch" in self.values:
            return f"torch.Generator().manual_seed({made.initial_seed()})"
        return None

    def of_class(self, kind: type) -> str | None:
        """Return what the script calls a class of DataLoaders: "" for torch's without a name."""
        data = sys.modules["torch.utils.data"]
        found = self.of(kind)
        if found or kind is not data.DataLoader:
            return found
        for module, path in ((data, ""), (sys.modules["torch"], "utils.data.")):
            name = self.of(module)
            if name:
                return f"{name}.{path}DataLoader"
        return ""

    def only(self, module: str, kind: str) -> str | None:
        """Return the name of the one variable of a kind, None where there is not just one."""
        held = {id(each): name for name, each in self.values.items() if is_a(each, module, kind)}
        return next(iter(held.values())) if len(held) == 1 else None

    def models(self) -> list[object]:
        """Return the Modules with parameters that have a name, each once.

        Not the one whose method the frame is in: it cannot be replaced from there.
        """
        named = {id(each): each for name, each in self.values.items() if name != "self"}
        return [
            each for each in named.values() if is_a(each, "torch.nn", "Module") and is_trained(each)
        ]

    def have_compiled_step(self, models: list[object]) -> bool:
        """Return whether a function that trains one of the `models` is compiled."""
        ids = {*map(id, models)}
        called = {name.rpartition(".")[2] for name, each in self.values.items() if id(each) in ids}
        return any(is_compiled_step(each, called) for each in self.values.values())

    def of_model(self, given: object) -> str | None:
        """Return the name of `given`, else of the one model that has all others as its parts."""
        if given is not None:
            return self.of(given)
        models = self.models()
        whole = [each for each in models if {*map(id, models)} <= {*map(id, parts_of(each))}]
        return self.of(whole[0]) if len(whole) == 1 else None


def _named(frame: FrameType) -> dict[str, object]:
    """Return the variables that code in a frame can name, its own first, and what `self` holds."""
    found = variables(frame)
    found |= {name: value for name, value in frame.f_globals.items() if name not in found}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _user_frame(part: object) -> FrameType | None:
    """Return the outermost frame of the user's code that names `part`, else the innermost."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(2))]
    users = [frame for frame in frames if is_users(frame.f_code.co_filename)]
    for frame in reversed(users):
        if any(value is part for value in _named(frame).values()):
            return frame
    return users[0] if users else None
