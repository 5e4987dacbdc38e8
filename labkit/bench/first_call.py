"""The first training call of a model of the user: its shapes, and what a step takes, counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from labkit.bench import formats
from labkit.bench.flops import count, without_numbers, work_event
from labkit.bench.model_parts import asks_to_compile, cards_of, is_set_in_place
from labkit.instruments.optional import write_or_why
from labkit.stamps.events import EventLog


class FirstArguments(NamedTuple):
    """The arguments of a model's first training call, tensors without their numbers."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    rows: int  # of the first argument
    device: torch.device
    autocasts: bool
    number_format: str  # of its weights, or of autocast


def _on_meta(value: object) -> object:
    return without_numbers(value) if isinstance(value, torch.Tensor) else value


def _format_of(weights: torch.Tensor) -> tuple[bool, str]:
    """Return whether autocast is on, and the number format of work with these weights."""
    kind = weights.device.type
    autocasts = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if autocasts else weights.dtype
    return autocasts, next(name for name, each in formats.NUMBER_FORMATS.items() if each is dtype)


class UncopiedHook:
    """A forward hook that no copy of its model takes along, be it pickled or a deep one."""

    def __init__(self, look: Callable[..., None]):
        self.look = look

    def __call__(self, *given: object) -> None:
        """Look at what the model is given."""
        self.look(*given)

    def __reduce__(self) -> tuple[object, ...]:
        # what takes anything and does nothing, also where there is no labkit
        return getattr, (contextlib.nullcontext(), "__exit__")


class FirstCallHook:
    """Sees the shapes of a user's model's first training call; counts on a copy what it takes.

    Nothing is hooked in a model or a part that shows that Dynamo compiles it: it would trace the
    hooks, and compile anew without them. A model compiled in place (`model.compile()`), or within
    accelerate's autocast, is not counted.
    """

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.given: FirstArguments | None = None
        self.knows_formats = False
        self.hooks: list[RemovableHandle] = []
        compiled = any(map(asks_to_compile, model.modules()))
        wrapped = hasattr(model, "_original_forward")  # by accelerate, with autocast within
        if is_set_in_place(model) or (compiled and wrapped):
            return
        with contextlib.suppress(RuntimeError):  # a scripted model takes no hook
            hook = UncopiedHook(self._look)
            self.hooks.append(model.register_forward_pre_hook(hook, with_kwargs=True))
        parts = list(model.modules())[1:]
        if compiled:
            return
        # accelerate switches autocast on within the model's forward: there is where to look
        weighty = (part for part in parts if next(part.parameters(recurse=False), None) is not None)
        first = next(weighty, None)
        if first is not None:
            with contextlib.suppress(RuntimeError):  # a scripted part takes no hook
                hook = UncopiedHook(self._look_inside)
                self.hooks.append(first.register_forward_pre_hook(hook))

    def remove(self) -> None:
        """Leave the model as it was."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _look(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if torch.compiler.is_compiling():  # the hook would become a part of what is compiled
            return
        if self.given is not None or not (module.training and torch.is_grad_enabled()):
            return
        with contextlib.suppress(Exception):
            weights = next(module.parameters())
            rows = len(tree_leaves((args, kwargs))[0])
            args, kwargs = tree_map(_on_meta, (args, kwargs))
            seen = _format_of(weights)
            self.given = FirstArguments(args, kwargs, rows, weights.device, *seen)

    def _look_inside(self, part: torch.nn.Module, _args: tuple[object, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        if self.given is None or self.knows_formats:  # not in a training call yet, or no more
            return
        self.knows_formats = True
        with contextlib.suppress(Exception):
            autocasts, kind = _format_of(next(part.parameters()))
            self.given = self.given._replace(autocasts=autocasts, number_format=kind)

    def write(self, log: EventLog, samples: int | None) -> None:
        """Write the `work` event of a batch of `samples`; None: as many as the call has rows."""
        self.remove()
        given = self.given
        if given is None:
            return

        def train(model: torch.nn.Module) -> None:
            total = torch.zeros((), device="meta")
            for made in tree_leaves(model(*given.args, **given.kwargs)):
                if torch.is_tensor(made) and made.requires_grad:
                    total = total + made.sum()
            total.backward()

        def counted() -> dict[str, object]:
            cards = cards_of(self.model)
            if cards > 1:
                raise RuntimeError(f"DataParallel computes on {cards} cards; a peak is that of one")
            took = count(self.model, train)
            kind = given.number_format
            if kind == "fp32":  # convolutions and matrix products have a setting each
                most = "convolution" if 2 * took["convolution_flops"] > took["flops"] else "product"
                kind = formats.fp32_runs_in(most, given.device)
            return work_event(
                took,
                samples or given.rows,
                kind,
                given.device,
                halves_activations=given.autocasts,
            )

        write_or_why(log, "work", counted)
