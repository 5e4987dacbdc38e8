"""What a user's model is made of, whether torch.compile has it, and on how many cards it computes.

Nothing here imports torch or runs the user's code: only what a model keeps is read.
"""

from __future__ import annotations

from types import FunctionType, MethodType

from labkit.bench.before_calls import held
from labkit.bench.stack import is_a, kept_by_class


def parts_of(model: object) -> list[object]:
    """Return a Module and all that it is made of."""
    found = {id(model): model}
    left = [model]
    while left:
        inner = held(left.pop()).get("_modules") or {}
        fresh = {id(each): each for each in inner.values() if each is not None}
        left += [each for number, each in fresh.items() if number not in found]
        found |= fresh
    return list(found.values())


def is_trained(model: object) -> bool:
    """Return whether a Module has parameters, as a loss function has none."""
    unseen = {"": model}  # a scripted part keeps its own elsewhere
    kept = [held(part).get("_parameters", unseen) for part in parts_of(model)]
    return any(weight is not None for weights in kept for weight in weights.values())


def cards_of(model: object) -> int:
    """Return on how many cards nn.DataParallel has a model or a part of it compute; 1 without."""
    parallel = [part for part in parts_of(model) if is_a(part, "torch.nn", "DataParallel")]
    return max((len(held(part).get("device_ids") or [0]) for part in parallel), default=1)


def is_compiled(model: object) -> bool:
    """Return whether torch.compile has made a model or a part of it, or compiled it in place."""
    return any(map(asks_to_compile, parts_of(model)))


def is_compiled_step(value: object, models: set[str]) -> bool:
    """Return whether it is a function of torch.compile's that trains.

    That is one which calls backward(), or has the name of one of `models`; a helper does neither.
    """
    kept = held(value) if type(value) is FunctionType else {}
    plain = kept.get("_torchdynamo_orig_callable")
    if "_torchdynamo_disable" in kept or not isinstance(plain, (FunctionType, MethodType)):
        return False
    code = plain.__code__
    named = {"backward", *models}
    return not named.isdisjoint(code.co_names + code.co_varnames + code.co_freevars)


def asks_to_compile(part: object) -> bool:
    """Return whether torch.compile was asked for a Module, whether or not it compiles it."""
    return "_orig_mod" in held(part).get("_modules", {}) or is_set_in_place(part)


def is_set_in_place(part: object) -> bool:
    """Return whether `compile()` of a Module has been called."""
    return held(part).get("_compiled_call_impl") is not None


def has_own_forward(part: object) -> bool:
    """Return whether a Module's forward is not torch's, as that of a bare nn.Sequential is.

    `Module.compile()` compiles nothing where it is: Dynamo skips torch's own frames, and where it
    begins in place there is no other one. `torch.compile(model)` begins in a frame of its own
    (pytorch/pytorch#150915).
    """
    forward = kept_by_class(type(part), "forward")
    return type(forward) is FunctionType and not forward.__module__.startswith("torch.nn")
