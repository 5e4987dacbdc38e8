"""Define challenges: a task, its goals and hints, and how an answer to it is run.

The challenges stand in `labkit.course.nb00` to `nb09`, one file a notebook. A knob challenge is
answered with changes of a spec, and judged by what that measures. A code challenge is answered with
a function or a class; its check, given that and torch, tries it out in the bench.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from labkit.course.answer import Attempt, Refused
from labkit.results.launch import launch
from labkit.spec import KNOBS, Distributed, Experiment, Pipeline

CLOSE = 0.1  # of a mark: where noise could decide

# -- goals -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """A number of the attempt, over the same of the baseline or on its own, and its mark.

    `value(attempt, baseline)` is the number; a code challenge's is what its check returns. It is
    measured again where it comes within the share `close` of the mark.
    """

    what: str  # in words, as the reader sees it: "samples/s over the baseline's"
    value: Callable[[Any, Any], float | None] | None = None
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0

    def met(self, value: float | None) -> bool:
        """Return whether `value` satisfies the relation; a number that is missing does not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        marks = (self.at_least, self.at_most)
        return value is not None and any(abs(value - m) < self.close * abs(m) for m in marks)

    def __str__(self) -> str:
        if self.at_least == self.at_most:
            return f"{self.what}: {self.at_least:g}"
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"


def ratio(name: str) -> Callable[[Any, Any], float | None]:
    """Return a goal's value: the attempt's attribute over the baseline's."""

    def value(attempt: Any, baseline: Any) -> float | None:
        mine, theirs = getattr(attempt, name), getattr(baseline, name)
        return mine / theirs if mine is not None and theirs else None

    return value


def faster(times: float) -> Goal:
    """Return the goal to train so many times the baseline's samples/s."""
    return Goal("samples/s over the baseline's", ratio("throughput"), at_least=times, close=CLOSE)


def sized_for_a_cpu(machine: Any) -> str | None:
    """Return why a challenge whose model is large for a CPU says nothing on a GPU."""
    return None if machine.kind == "cpu" else "Its model is sized for a CPU; here is a GPU."


# -- tasks -----------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {}


@dataclass(kw_only=True)
class Task:
    """The common part of both kinds; `needs(machine)` says why it cannot be done here."""

    key: str  # "02-feed": notebook and name
    title: str
    text: str  # what to do, and what may be changed
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    base: Any = None  # what to begin from: a spec, a function, a class
    solution: Any = None
    needs: Callable[[Any], str | None] | None = None
    compares: bool = False  # with a baseline's run: a check measures its own

    def __post_init__(self):
        TASKS[self.key] = self


@dataclass(kw_only=True)
class KnobTask(Task):
    """Answered with `base` with the knobs in `free` changed: a spec, or a dict of changes.

    `against` is what the goals compare with, where it is not `base` itself.
    """

    free: tuple[str, ...]
    compares: bool = True
    tolerance: float | None = 1e-3  # of the first losses; None: the knobs may change them
    against: Any = None

    @property
    def rules(self) -> str:
        """The kind of answer expected, and what it may change."""
        kind = "a Pipeline or a dict" if isinstance(self.base, Pipeline) else "a dict"
        return f"The answer is {kind} of changes; only {', '.join(self.free)} may change."

    def spec(self, answer: Any) -> Any:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        if not isinstance(answer, (dict, type(self.base))):
            raise ValueError(f"{self.rules.split(';')[0]}, this is {type(answer).__name__}.")
        spec = changed(self.base, answer) if isinstance(answer, dict) else answer
        before, after = values(self.base), values(spec)
        if before == after:
            raise ValueError("This is what you were given: change one of the allowed knobs.")
        if held := [n for n in after if after[n] != before[n] and n not in self.free]:
            raise ValueError(
                f"Leave {', '.join(held)} as {'it is' if len(held) == 1 else 'they are'}: "
                f"only {', '.join(self.free)} may change, or it is not the same work."
            )
        return spec

    def start(self, answer: Any) -> Any:
        """Start the answer's run."""
        return launch(self.spec(answer))

    def other_work(self, run: Any, baseline: Any) -> str | None:
        """Return why the run did different work than it was asked to; None if it did not."""
        if self.tolerance and self.compares:
            pairs = zip(run.loss[:5], baseline.loss[:5], strict=False)
            if any(abs(a - b) > self.tolerance * max(1.0, abs(b)) for a, b in pairs):
                return "The losses are not those of the same work."
        return None


def changed(spec: Any, changes: dict[str, Any]) -> Any:
    """Return `spec` with changes; those of ranks may be knobs of their pipeline as well."""
    if not isinstance(spec, Distributed):
        return spec.but(**changes)
    knobs = {name: value for name, value in changes.items() if name in KNOBS}
    own = {name: value for name, value in changes.items() if name not in KNOBS}
    return spec.but(pipeline=spec.pipeline.but(**knobs), **own)


def values(spec: Any) -> dict[str, Any]:
    """Return everything that a spec sets, by name."""
    if not isinstance(spec, Distributed):
        return spec.to_dict()
    whole = spec.to_spec()
    return {**whole.pop("pipeline"), **whole}


@dataclass(kw_only=True)
class CodeTask(Task):
    """Answered with a function or a class, which `check(answer, torch)` tries out in the bench."""

    check: Callable[[Any, Any], dict[str, float]]

    @property
    def rules(self) -> str:
        """The kind of answer expected."""
        return f"The answer is a {'class' if isinstance(self.base, type) else 'function'}."

    def start(self, answer: Any) -> Any:
        """Start the run that tries the answer out."""
        if not (isinstance(answer, type) if isinstance(self.base, type) else callable(answer)):
            raise ValueError(f"{self.rules[:-1]}, this is {type(answer).__name__}.")
        task = f"{self.check.__module__}:{self.check.__name__}"
        return launch(Experiment("exercise", {"task": task}), source=Attempt(answer))

    def other_work(self, measured: Any, _baseline: Any) -> str | None:
        """Return why the answer does not count; None if it does."""
        return next((p.values.get("why") for p in measured if p.of == "refused"), None)


def knobs(key: str, title: str, text: str, *goals: Goal, **more: Any) -> None:
    """Add a challenge that is answered with knobs; `more` are the fields of a KnobTask."""
    KnobTask(key=key, title=title, text=text, goals=goals, **more)


def code(
    key: str, *hints: str, start: Any = None, solution: Any = None, **goals: Goal
) -> Callable[[Callable], Callable]:
    """Add a challenge that is answered with code; decorates its check.

    The check's docstring is the title and, below it, the task. It returns a number for each goal,
    by name, or raises Refused.
    """

    def counted(name: str) -> Callable[[Any, Any], float | None]:
        return lambda points, _: next((p.values[name] for p in points if name in p.values), None)

    def add(check: Callable[[Any, Any], dict[str, float]]) -> Callable:
        title, _, text = inspect.getdoc(check).partition("\n\n")
        CodeTask(
            key=key, title=title.rstrip("."), text=" ".join(text.split()), hints=hints,
            goals=tuple(replace(goal, value=counted(name)) for name, goal in goals.items()),
            base=start, solution=solution, check=check,
        )  # fmt: skip
        return check

    return add


def all_tasks() -> dict[str, Task]:
    """Return every challenge of the course by its key, in the notebooks' order."""
    for number in range(10):
        import_module(f"labkit.course.nb{number:02}")
    return dict(sorted(TASKS.items(), key=lambda each: each[0][:2]))


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
def counting():
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


def compared_gradients(answer: Any, model: Any, batches: list, x: Any, y: Any) -> dict[str, float]:
    """Return the `error` of the gradients the answer leaves, and the `largest` batch it ran.

    Right is the gradient of the mean cross entropy of all samples `x`, `y` at once.
    """
    import torch

    torch.nn.functional.cross_entropy(model(x), y).backward()
    right = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    answer(model, [tuple(t.clone() for t in batch) for batch in batches])
    hook.remove()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    errors = [difference(mine, theirs) for mine, theirs in zip(found, right, strict=True)]
    return {"error": max(errors), "largest": max(sizes, default=0)}
