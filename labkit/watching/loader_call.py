"""A user's DataLoader as the call that makes it, in the names of the user's own script.

An object is written as the variable that holds it, else as an attribute of the loader. Nothing here
imports torch or runs the user's code.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from types import MethodType
from typing import Any

from labkit.instruments.before_calls import attributes_of
from labkit.instruments.loader_knobs import torch_loader
from labkit.instruments.stack import is_a, is_users, variables

MADE = "_labkit_made"  # of a loader: "file:line" where it was made, while `labkit tune` runs
SIMPLE = (bool, int, float, str, type(None))

Names = dict[int, str]  # the variables that a user's frame sees, by the ids of what they hold


def call_of(loader: object) -> dict[str, object]:
    """Return what is known of the code around `loader`, seen from the user's frame that calls us.

    Returns:
        `loader`: the variable that holds it, None where there is none; `made`: where, if that is
        known; `streams`: whether its dataset is an IterableDataset; `call`: what the script calls
        to make a loader, "" where it has no name for torch's DataLoader;
        `arguments`: {name: code}, defaults left out, the code None where the script has no name for
        the object. `call` and `arguments` are None where the loader is no DataLoader.
    """
    names = _names_around(loader)
    dataset = attributes_of(torch_loader(loader)).get("dataset")
    call = None
    if is_a(loader, "torch.utils.data", "DataLoader"):
        is_torchs = type(loader) is sys.modules["torch.utils.data"].DataLoader
        call = names.get(id(type(loader)), "" if is_torchs else None)
    return {
        "loader": names.get(id(loader)),
        "streams": is_a(dataset, "torch.utils.data", "IterableDataset"),
        "made": attributes_of(loader).get(MADE),
        "call": call,
        "arguments": None if call is None else _arguments(loader, names),
    }


def in_trainer() -> bool:
    """Return whether Hugging Face's Trainer calls us: its arguments set the loader."""
    frames = traceback.walk_stack(sys._getframe(1))
    return any(frame.f_globals.get("__name__") == "transformers.trainer" for frame, _ in frames)


def _arguments(loader: object, names: Names) -> dict[str, str | None]:
    """Return the arguments of a DataLoader that are not PyTorch's defaults, as code."""
    data: Any = sys.modules["torch.utils.data"]
    kept = attributes_of(loader)
    parameters = inspect.signature(data.DataLoader).parameters
    given = {name: kept.get(name, each.default) for name, each in parameters.items()}
    if given["batch_sampler"] is not None:  # torch's own, where there is a size
        del given["batch_size" if given["batch_size"] is None else "batch_sampler"]
    shuffles = {"replacement": False, "_num_samples": None}
    shuffles |= {"data_source": given["dataset"], "generator": given["generator"]}
    sampler = given["sampler"]
    if type(sampler) is data.RandomSampler and attributes_of(sampler) == shuffles:
        given["shuffle"] = True
    own = (data.SequentialSampler, data.dataloader._InfiniteConstantSampler)
    if given["shuffle"] or type(sampler) in own:
        del given["sampler"]
    collate = data._utils.collate
    if id(given["collate_fn"]) in map(id, (collate.default_collate, collate.default_convert)):
        del given["collate_fn"]
    given["multiprocessing_context"] = kept.get("_DataLoader__multiprocessing_context")
    code: dict[str, str | None] = {}
    owner = names.get(id(loader))
    for name, value in given.items():
        if type(value) not in SIMPLE:
            code[name] = _name_of(value, names) or (owner and f"{owner}.{name}")
        elif value != parameters[name].default:
            code[name] = repr(value)
    return code


def _name_of(part: object, names: Names) -> str | None:
    """Return the name of an object, of a method as `name.method`; None where it has none."""
    if type(part) is MethodType:
        owner = names.get(id(part.__self__))
        return owner and f"{owner}.{part.__name__}"
    return names.get(id(part))


def _names_around(part: object) -> Names:
    """Return the names in the outermost frame of the user's that names `part`, else the innermost.

    Of several names of an object the first: `model`, and not a later `raw_model = model`.
    """
    around: list[Names] = []
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        if is_users(frame.f_code.co_filename):
            named = frame.f_globals | variables(frame)
            names = (each for each in reversed(named) if not each.startswith("_"))
            around.append({id(named[each]): each for each in names})
    naming = [names for names in around if id(part) in names]
    return (naming[-1:] or around[:1] or [{}])[0]
