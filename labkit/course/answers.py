"""How an answer to a challenge is tried out: sent by value, unpickled in the bench, and measured.

The bench calls the challenge's own check, which returns numbers or raises `Refused`. What the
checks of several notebooks share is below. torch is imported in the functions: the kernel reads
this module too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle

from labkit.knobs import knob
from labkit.spec import experiment

PAYLOAD = "attempt.pkl"
MAX_BYTES = 16 * 2**20

# What a measurement relies on. An answer that replaces one of them is refused.
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")
TORCH = ("allclose", "isfinite", "equal", "randn", "compile")  # Dynamo itself wraps manual_seed


class Unsendable(ValueError):
    """An answer that cannot be sent to another process; the message says why."""


class Refused(Exception):
    """An answer that does not do the same work; the message says what it does instead."""


class Attempt:
    """A function or class on its way to the bench, as the launcher takes it for a `source`."""

    def __init__(self, answer: Any):
        self.answer = answer

    def place(self, folder: Path) -> dict[str, Any]:
        """Write the answer into the run's folder, for its owner alone; return where it is."""
        try:
            data = cloudpickle.dumps(self.answer)
        except Exception as error:  # whatever the reader's objects raise
            raise Unsendable(f"It cannot be sent to another process: {error}") from None
        if len(data) > MAX_BYTES:
            raise Unsendable(
                f"It drags {len(data) / 2**20:.0f} MiB of data along: define what it needs inside."
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(folder / PAYLOAD, flags, 0o600), "wb") as file:
            file.write(data)
        return {"payload": PAYLOAD, "path": [os.path.abspath(p or ".") for p in sys.path]}

    def described(self, spec: Any) -> dict[str, Any]:
        """Return what the run's first event tells: which exercise, nothing of the answer."""
        return spec.to_spec()


@experiment(
    "an answer to a challenge, tried out",
    task=knob("", "the challenge: module:name", pattern=re.compile(r"labkit\.course\.nb\d\d:\w+")),
)
def exercise(job: Any, bench: Any) -> None:
    """Write what the check of `job.task` counts, or a point "refused" that says why not."""
    module, _, name = job.task.partition(":")
    world = importlib.import_module(module)
    check, before = getattr(world, name).check, _relied_on(world)
    try:
        bench.write("answer", values=check(_unpacked(bench.answer)))
    except Refused as refused:
        bench.write("refused", values={"why": str(refused)})
    except Exception as error:  # the reader's code may raise anything
        why = f"It raised {type(error).__name__}: {str(error)[:300]}"
        bench.write("refused", values={"why": why})
    after = _relied_on(world)
    if changed := [thing for thing in after if after[thing] is not before.get(thing, after[thing])]:
        why = f"It replaces {', '.join(changed)}: then nothing can be measured."
        bench.write("refused", values={"why": why})


def _unpacked(path: Path) -> Any:
    """Read the answer, which the reader's own kernel wrote for this process, and delete it."""
    try:
        return pickle.loads(path.read_bytes())
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _relied_on(check: Any) -> dict[str, Any]:
    import torch

    found = {f"time.{name}": getattr(time, name) for name in CLOCKS}
    found |= {f"torch.{name}": getattr(torch, name) for name in TORCH}
    return found | {f"the check's {name}": thing for name, thing in vars(check).items()}


# -- what checks share -----------------------------------------------------------------------------


def difference(found: Any, right: Any) -> float:
    """Return the largest difference, over the largest right value; refuse what cannot have one."""
    import torch

    if not isinstance(found, torch.Tensor) or found.shape != right.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise Refused(f"It returns {shape}, not a tensor of shape {tuple(right.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise Refused("There are infinities or NaN in what it returns.")
    return float((found.double() - right.double()).abs().max() / right.double().abs().max())


@contextmanager
def counting() -> Iterator[SimpleNamespace]:
    """Count the operations in the block, `names`, and the `bytes` they read and write.

    Views do neither. Counts have no noise.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    counted = SimpleNamespace(names=[], bytes=0)

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not getattr(func, "is_view", False):
                counted.names.append(str(func))
                leaves = tree_leaves((args, kwargs, out))
                counted.bytes += sum(t.nbytes for t in leaves if isinstance(t, torch.Tensor))
            return out

    with Counting():
        yield counted


def compared_gradients(
    answer: Any, model: Any, batches: list, right_loss: Callable[[Any], Any]
) -> dict[str, float]:
    """Return the `error` of the gradients the answer leaves, and the `largest` batch it ran."""
    import torch

    model.zero_grad()
    right_loss(model).backward()
    right = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    answer(model, [tuple(t.clone() for t in batch) for batch in batches])
    hook.remove()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    errors = [difference(mine, theirs) for mine, theirs in zip(found, right, strict=True)]
    return {"error": max(errors), "largest": max(sizes, default=0)}
