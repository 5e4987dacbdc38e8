"""What a user's model is made of, whether it is to be compiled, and on how many cards it computes.

Nothing here imports torch or runs the user's code: only what a model keeps is read.
"""

from __future__ import annotations

from labkit.instruments.before_calls import held
from labkit.instruments.stack import is_a


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


def cards_of(model: object) -> int:
    """Return on how many cards nn.DataParallel has a model or a part of it compute; 1 without."""
    parallel = [part for part in parts_of(model) if is_a(part, "torch.nn", "DataParallel")]
    return max((len(held(part).get("device_ids") or [0]) for part in parallel), default=1)


def asks_to_compile(part: object) -> bool:
    """Return whether torch.compile was asked for a Module, whether or not it compiles it."""
    return "_orig_mod" in held(part).get("_modules", {}) or is_set_in_place(part)


def is_set_in_place(part: object) -> bool:
    """Return whether `compile()` of a Module has been called."""
    return held(part).get("_compiled_call_impl") is not None
