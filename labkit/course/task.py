"""Define challenges, which stand in `labkit.course.nb00_03` to `nb12`, by notebook.

A knob challenge is answered with changes of a spec and judged by what that measures; a code
challenge with a function or a class, which its check tries out in the bench.
"""

from __future__ import annotations

import inspect
import math
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import cloudpickle

from labkit.bench import triton_kernels
from labkit.results.launch import launch
from labkit.results.measurements import Measurements
from labkit.spec import KNOBS, Distributed, Grid, Pipeline
from labkit.view.measuring import Sent

FILES = ("nb00_03", "nb04_06", "nb07_09", "nb10", "nb11", "nb12")
MOST_MIB = 16  # of a pickled answer


class Refused(Exception):
    """An answer that does not do the same work; the message says what it does instead."""


@dataclass(frozen=True)
class Goal:
    """A number `value(attempt, baseline)`, and its mark; a code challenge's check returns it."""

    what: str  # as the reader sees it: "samples/s over the baseline's"
    value: Callable[[Any, Any], float | None] | None = None
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0  # within this share of a mark noise could decide: it is measured again

    def met(self, value: float | None) -> bool:
        """Return whether `value` satisfies the relation; a number that is missing does not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        marks = (self.at_least, self.at_most)
        return value is not None and any(abs(value - m) < self.close * abs(m) for m in marks)

    def __str__(self) -> str:
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"


def ratio(what: str, name: str, **marks: float) -> Goal:
    """Return a goal for the attempt's attribute `name` over the baseline's, which noise blurs."""

    def value(attempt: Any, baseline: Any) -> float | None:
        mine, theirs = getattr(attempt, name), getattr(baseline, name)
        return mine / theirs if mine is not None and theirs else None

    return Goal(what, value, close=0.1, **marks)


def faster(times: float) -> Goal:
    """Return the goal to train so many times the baseline's samples/s."""
    return ratio("samples/s over the baseline's", "throughput", at_least=times)


# -- tasks -----------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {}


@dataclass
class Task:
    """The common part of both kinds."""

    key: str  # "02-feed": notebook and name
    title: str
    text: str
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    base: Any = None  # what to begin from: a spec, a function, a class
    solution: Any = None
    cpu_only: bool = False  # its model is sized for a CPU: on a GPU it says nothing
    compares: bool = False  # with a baseline's run: a check measures its own

    def __post_init__(self):
        TASKS[self.key] = self


@dataclass
class KnobTask(Task):
    """Answered with `base` with the knobs in `free` changed: a spec, or a dict of changes."""

    free: tuple[str, ...] = ()
    compares: bool = True
    against: Any = None  # what the goals compare with, where it is not `base`

    @property
    def rules(self) -> str:
        """The kind of answer expected, and what it may change."""
        kind = "a Pipeline or a dict" if isinstance(self.base, Pipeline) else "a dict"
        return f"The answer is {kind} of changes; only {', '.join(self.free)} may change."

    def spec(self, answer: Any) -> Any:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        spec = answer
        if isinstance(answer, dict):
            changes = dict(answer)
            if isinstance(self.base, Distributed):  # knobs of its pipeline may be changed as well
                knobs = {name: changes.pop(name) for name in answer if name in KNOBS}
                changes["pipeline"] = self.base.pipeline.but(**knobs)
            spec = self.base.but(**changes)
        elif not isinstance(answer, type(self.base)):
            raise ValueError(f"{self.rules.split(';')[0]}, this is {type(answer).__name__}.")
        before, after = (everything(each) for each in (self.base, spec))
        if before == after:
            raise ValueError("This is what you were given: change one of the allowed knobs.")
        if held := [n for n in after if after[n] != before[n] and n not in self.free]:
            only = f"only {', '.join(self.free)} may change, or it is not the same work"
            raise ValueError(f"Leave {', '.join(held)} as given: {only}.")
        return spec

    def start(self, answer: Any) -> Any:
        """Start the answer's run."""
        return launch(self.spec(answer))

    def refused(self, _run: Any) -> None:
        """Return why the answer does not count: `spec` has said it before."""


def everything(spec: Any) -> dict[str, Any]:
    """Return all that a spec sets, by name; of ranks also what their pipeline sets."""
    own = dict(vars(spec))
    return own | vars(own.pop("pipeline")) if isinstance(spec, Distributed) else own


@dataclass
class CodeTask(Task):
    """Answered with a function or a class, which the check of the class `world` tries out."""

    world: Any = None

    @property
    def rules(self) -> str:
        """The kind of answer expected."""
        return f"The answer is a {'class' if isinstance(self.base, type) else 'function'}."

    def start(self, answer: Any) -> Any:
        """Start the run that tries the answer out."""
        if not (isinstance(answer, type) if isinstance(self.base, type) else callable(answer)):
            raise ValueError(f"{self.rules[:-1]}, this is {type(answer).__name__}.")
        exercise = exercise_of(self.key, answer)
        return launch(Grid(self.key, (), (), {}), source=Sent(exercise))

    def refused(self, tried: Measurements) -> str | None:
        """Return why the answer does not count; None if it does."""
        row = tried.rows.iloc[0]
        return row["error"] or row["counted"].get("refused")


def code(key: str, *hints: str, **goals: Goal) -> Callable[[type], type]:
    """Add a challenge that is answered with code: decorates a class, whose docstring poses it.

    Its `check(answer)` returns a number for each goal, by name, or raises Refused. It has a
    `solution`, and a `start` where there is something to begin from. None of them takes a self.
    """

    def counted(name: str) -> Callable[[Any, Any], float | None]:
        def value(tried: Measurements, _baseline: Any) -> float | None:
            return tried.rows["counted"][0].get(name)

        return value

    def add(world: type) -> type:
        title, _, text = inspect.getdoc(world).partition(".\n\n")
        found = tuple(replace(goal, value=counted(name)) for name, goal in goals.items())
        about = key, title, " ".join(text.split()), found, hints
        CodeTask(*about, getattr(world, "start", None), world.solution, world=world)
        return world

    return add


def all_tasks() -> dict[str, Task]:
    """Return every challenge of the course by its key, in the notebooks' order."""
    for name in FILES:
        import_module(f"labkit.course.{name}")
    return dict(sorted(TASKS.items(), key=lambda each: each[0][:2]))


# -- trying code out in the bench ------------------------------------------------------------------

# What a measurement relies on. An answer that replaces one of them is refused.
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")
TORCH = ("allclose", "isfinite", "equal", "randn", "compile")  # Dynamo itself wraps manual_seed


def exercise_of(key: str, answer: Any) -> Callable:
    """Return a function for the bench that tries an answer out; ValueError if it cannot be sent.

    The answer travels as bytes: it is unpacked only when what it must not replace is known.
    """
    triton_kernels.allow()
    try:
        packed = cloudpickle.dumps(answer)
    except Exception as error:  # whatever the reader's objects raise
        raise ValueError(f"It cannot be sent to another process: {error}") from None
    if (mib := len(packed) / 2**20) > MOST_MIB:
        raise ValueError(f"It drags {mib:.0f} MiB of data along: define what it needs inside.")

    def exercise(bench: Any) -> dict[str, Any]:
        return {"counted": tried_out(key, packed)}

    return exercise


def tried_out(key: str, packed: bytes) -> dict[str, Any]:
    """Return what a challenge's check counts of an answer, or {"refused": why not}."""
    world = all_tasks()[key].world
    before = relied_on(world)
    try:
        answer = pickle.loads(packed)  # of the reader's own kernel
        found = world.check(answer)
    except Refused as why:
        found = {"refused": str(why)}
    except Exception as error:  # the reader's code may raise anything
        found = {"refused": f"It raised {type(error).__name__}: {str(error)[:300]}"}
    after = relied_on(world)
    replaced = [name for name in after if after[name] is not before.get(name, after[name])]
    if replaced:
        return {"refused": f"It replaces {', '.join(replaced)}: then nothing can be measured."}
    return found


def relied_on(world: type) -> dict[str, Any]:
    """Return by name what a measurement relies on: clocks, torch, and what the check uses."""
    import torch

    found = {f"time.{name}": getattr(time, name) for name in CLOCKS}
    found |= {f"torch.{name}": getattr(torch, name) for name in TORCH}
    used = vars(sys.modules[world.__module__]) | vars(world)
    return found | {f"the check's {name}": value for name, value in used.items()}


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
    """Count the operations in the block, `names`, and the `bytes` they read and write; no views."""
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
