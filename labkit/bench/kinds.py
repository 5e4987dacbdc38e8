"""Which kind of work does a frame do at the moment, and by which call? By the names of both."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FrameType

from labkit.bench.expressions import call_text, called, expression
from labkit.bench.kind_names import (
    INNER_SYNC,
    OF_BUILTINS,
    OF_TENSORS,
    OF_TORCH,
    SAVES,
    TRAINING,
    kind_of,
)
from labkit.bench.named_objects import module_named
from labkit.bench.stack import is_gpu_in_use, module_of_frame

WHOLE = ("checkpoint", "metric")  # kinds of work that reads tensors, and that whoever asks wants
TO_NUMBER = ("float", "int", "bool")  # of Python's own: they read a tensor's value


def kind_of_calls(frames: Iterable[FrameType]) -> str:
    """Return the kind of work of library frames, the deepest first; the last has the say.

    Not where the deepest waits for a GPU, as the optimizer's loss scaler does, or copies to it, as
    a package that sends a batch there.
    """
    kind = ""
    deepest = None
    for frame in frames:
        deepest = deepest or frame
        module = module_of_frame(frame)
        special = OF_TORCH.get(frame.f_code.co_name) if module.startswith("torch.") else None
        outer = special or kind_of(module)
        hands_on = frame.f_code.co_flags & inspect.CO_GENERATOR  # as `tqdm(loader)` does
        closes = outer == "optimizer" and kind in ("forward", "backward")  # `step(closure)`
        keeps = kind and (hands_on or closes or kind == "metric")
        kind = kind if keeps else outer or kind or "library"
    if deepest is None or kind in WHOLE or not is_gpu_in_use():
        return kind
    asked = kind_and_call(deepest)[0]
    if asked == "sync":
        return INNER_SYNC if kind in TRAINING else "sync"
    return "copy" if asked == "copy" and kind == "library" else kind


def kind_and_call(frame: FrameType) -> tuple[str, str]:
    """Return what a frame itself does at the moment: ("sync", "loss.item()")."""
    text = expression(frame)
    kind = kind_of_text(text, frame)
    return "logging" if kind == "library" and SAVES.search(call_text(text)) else kind, call_text(
        text
    )


def kind_of_text(text: str, frame: FrameType) -> str:
    """Return the kind of work of a call or operation: by its name, and whose objects it names."""
    name = called(text).rpartition(".")[2]
    module = module_named(text, frame)
    if name in OF_BUILTINS and module in ("", "torch", "builtins"):
        return OF_BUILTINS[name]
    if module == "torch":
        return "sync" if name in TO_NUMBER else OF_TORCH.get(name, "torch")
    if name in OF_TENSORS and module in ("", "__main__"):
        return OF_TORCH[name]
    if module in ("", "__main__", "builtins", "math") or (module == "time" and name != "sleep"):
        return "python"  # a clock: what took the time came before
    return kind_of(module) or "library"
