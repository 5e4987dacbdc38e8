"""A user's DataLoader as the call that makes it, in the names of the user's own script.

An object is written as the variable that holds it, else as an attribute of the loader. Nothing here
imports torch or runs the user's code.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from types import FrameType, MethodType
from typing import Any

from labkit.instruments.before_calls import held
from labkit.instruments.loader_knobs import torch_loader
from labkit.instruments.stack import is_a, is_users, loop_around, variables

MADE = "_labkit_made"  # of a loader: "file:line" where it was made, while `labkit tune` runs
SIMPLE = (bool, int, float, str, type(None))


def call_of(loader: object) -> dict[str, object]:
    """Return what is known of the code around `loader`, seen from the user's frame that calls us.

    Returns:
        `loader`: the variable that holds it, None where there is none; `made`: where, if that is
        known; `dataset_type`: its class; `streams`: whether it is an IterableDataset; `cards`: how
        many one process trains on; `call`: what the script calls to make a loader, "" where it has
        no name for torch's DataLoader; `arguments`: {name: code}, defaults left out, the code None
        where the script has no name for the object. `call` and `arguments` are None where the
        loader is no DataLoader, or is made inside a framework.
    """
    names = Names(_user_frame(loader))
    dataset = held(torch_loader(loader)).get("dataset")
    found = {
        "loader": names.of(loader),
        "dataset_type": type(dataset).__name__,
        "streams": is_a(dataset, "torch.utils.data", "IterableDataset"),
        "made": held(loader).get(MADE),
        "call": None,
        "arguments": None,
    }
    if (trainer := trainer_frame()) is not None:  # it makes an nn.DataParallel
        asked = held(variables(trainer).get("self.args"))
        found["cards"] = max(1, asked.get("n_gpu", asked.get("_n_gpu", 1)))
    is_framed = not found["loader"] and loop_around(sys._getframe(1))[1]
    if is_a(loader, "torch.utils.data", "DataLoader") and not is_framed:
        found["call"] = names.of_class(type(loader))
        found["arguments"] = None if found["call"] is None else _arguments(loader, names)
    return found


def trainer_frame() -> FrameType | None:
    """Return the frame of Hugging Face's Trainer that calls us; None without one."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    inside = (each for each in frames if each.f_globals.get("__name__") == "transformers.trainer")
    return next(inside, None)


def call_with(dataset: object) -> dict[str, object]:
    """Return, as `call_of` does, a call that makes a shuffling loader of a dataset."""
    names = Names(_user_frame(dataset))
    arguments = {"dataset": names.of(dataset)}
    if not is_a(dataset, "torch.utils.data", "IterableDataset") and not isinstance(dataset, str):
        arguments["shuffle"] = "True"
    data = sys.modules.get("torch.utils.data")
    return {"call": names.of_class(data.DataLoader) if data else "", "arguments": arguments}


def may_fuse(optimizer: object) -> bool | None:
    """Return whether an optimizer has a fused version that is not in use; None if it is unknown."""
    defaults = held(optimizer).get("defaults")
    groups = held(optimizer).get("param_groups")
    if type(defaults) is not dict or type(groups) is not list:
        return None
    return "fused" in defaults and not any(dict.get(group, "fused") is True for group in groups)


def has_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


def _arguments(loader: object, names: Names) -> dict[str, str | None]:
    """Return the arguments of a DataLoader that are not PyTorch's defaults, as code."""
    data: Any = sys.modules["torch.utils.data"]
    kept = held(loader)
    defaults = {
        name: each.default for name, each in inspect.signature(data.DataLoader).parameters.items()
    }
    given = {name: kept.get(name, default) for name, default in defaults.items()}
    if given["batch_size"] is not None:
        del given["batch_sampler"]  # torch's own
    elif given["batch_sampler"] is not None:
        del given["batch_size"]
    given["shuffle"] = _is_shuffle(given) or None
    sampler = given["sampler"]
    own = (data.SequentialSampler, data.dataloader._InfiniteConstantSampler)
    if given["shuffle"] or type(sampler) in own:
        del given["sampler"]
    collate = data._utils.collate
    if any(
        given["collate_fn"] is each for each in (collate.default_collate, collate.default_convert)
    ):
        del given["collate_fn"]
    context: Any = kept.get("_DataLoader__multiprocessing_context")
    if is_a(context, "multiprocessing.context", "BaseContext"):
        given["multiprocessing_context"] = context.get_start_method()
    owner = names.of(loader)
    code: dict[str, str | None] = {}
    for name, value in given.items():
        if type(value) not in SIMPLE:
            code[name] = names.of(value) or (owner and f"{owner}.{name}")
        elif value != defaults[name]:
            code[name] = repr(value)
    return code


def _is_shuffle(given: dict[str, Any]) -> bool:
    """Return whether shuffle=True makes the sampler among the arguments of a loader."""
    sampler = given["sampler"]
    return (
        type(sampler) is sys.modules["torch.utils.data"].RandomSampler
        and sampler.data_source is given["dataset"]
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is given["generator"]
    )


class Names:
    """The variables that a user's frame sees, by the objects that they hold."""

    def __init__(self, frame: FrameType | None):
        named = _named(frame) if frame is not None else {}
        # Of several names the first: `model`, and not a later `raw_model = model`
        self.by_id = {id(value): name for name, value in reversed(named.items())}

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

    def of_class(self, kind: type) -> str | None:
        """Return what the script calls a class of DataLoaders: "" for torch's without a name."""
        is_torchs = kind is sys.modules["torch.utils.data"].DataLoader
        return self.of(kind) or ("" if is_torchs else None)


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
