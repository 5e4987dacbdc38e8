"""Define challenges: a task, its goals, its hints, and how an answer is tried out.

The challenges stand in `labkit.course.nb00` to `nb09`, one file a notebook. A code challenge is a
function: its docstring is the task, its body checks an answer (in the bench, which imports torch).
A knob challenge is answered with changes of a spec, and judged by what that measures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from typing import Any, ClassVar

from labkit.course.answers import Attempt
from labkit.results.launch import launch
from labkit.spec import KNOBS, Distributed, Experiment, Pipeline

CLOSE = 0.1  # of a mark: where noise could decide

Value = Callable[[Any, Any], "float | None"]  # (attempt, baseline) -> the number

# -- goals -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """One relation: a number of the attempt, over the same of the baseline or on its own."""

    what: str  # in words, as the reader sees it: "samples/s over the baseline's"
    value: Value | None = None  # None: what a check returns under the goal's name
    at_least: float | None = None
    at_most: float | None = None
    close: float | None = None  # measured again this near to the mark, as a share; None: exact

    def met(self, value: float | None) -> bool:
        """Return whether `value` satisfies the relation; a number that is missing does not."""
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return value is not None and low <= value <= high

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        if value is None or self.close is None:
            return False
        marks = [mark for mark in (self.at_least, self.at_most) if mark is not None]
        return any(abs(value - m) <= self.close * abs(m) for m in marks)

    @property
    def expected(self) -> str:
        """The relation in words."""
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.what}: {self.at_least:g}"
        marks = {"at least": self.at_least, "at most": self.at_most}
        return f"{self.what}: " + " and ".join(
            f"{word} {mark:g}" for word, mark in marks.items() if mark is not None
        )


def at_least(mark: float, what: str, value: Value | None = None, **more: Any) -> Goal:
    """Return the goal that `what` is `mark` or more."""
    return Goal(what, value, at_least=mark, **more)


def at_most(mark: float, what: str, value: Value | None = None, **more: Any) -> Goal:
    """Return the goal that `what` is `mark` or less."""
    return Goal(what, value, at_most=mark, **more)


def ratio(name: str) -> Value:
    """Return a goal's value: the attempt's attribute over the baseline's."""

    def value(attempt: Any, baseline: Any) -> float | None:
        mine, theirs = getattr(attempt, name), getattr(baseline, name)
        return mine / theirs if mine is not None and theirs else None

    return value


def faster(times: float) -> Goal:
    """Return the goal to train so many times the baseline's samples/s."""
    return at_least(times, "samples/s over the baseline's", ratio("throughput"), close=CLOSE)


def counted(name: str) -> Value:
    """Return a goal's value: what a check returned under `name`."""

    def value(measured: Any, _baseline: Any) -> float | None:
        found = [point.values[name] for point in measured if name in point.values]
        return found[-1] if found else None

    return value


def sized_for_a_cpu(machine: Any) -> str | None:
    """Return why a challenge whose model is large for a CPU says nothing on a GPU."""
    return None if machine.kind == "cpu" else "Its model is sized for a CPU; here is a GPU."


# -- tasks -----------------------------------------------------------------------------------------


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


@dataclass(kw_only=True)
class KnobTask(Task):
    """Answered with `base` with the knobs in `free` changed: a spec, or a dict of changes.

    `against` is what the goals compare with, where it is not `base` itself.
    """

    free: tuple[str, ...] = ()
    same_losses: bool = True  # whether the allowed knobs leave the first losses as they are
    tolerance: float = 1e-3  # of the losses: 16-bit formats round
    against: Any = None
    compares: bool = True  # whether a goal looks at the baseline at all

    @property
    def rules(self) -> str:
        """The kind of answer expected, and what it may change."""
        kind = "a Pipeline or a dict" if isinstance(self.base, Pipeline) else "a dict"
        return f"The answer is {kind} of changes; only {', '.join(self.free)} may change."

    def spec(self, answer: Any) -> Any:
        """Return what is to be run; raises ValueError, saying why, if it is not an answer."""
        if isinstance(answer, type(self.base)):
            return answer
        if not isinstance(answer, dict):
            wanted = type(self.base).__name__ if isinstance(self.base, Pipeline) else "dict"
            raise ValueError(f"The answer is a {wanted}, this is {type(answer).__name__}.")
        known = _values(self.base)
        if unknown := [str(name) for name in answer if name not in known]:
            raise ValueError(f"Unknown knob {unknown[0]!r}; available: {', '.join(self.free)}.")
        if isinstance(self.base, Distributed):
            knobs = {name: value for name, value in answer.items() if name in KNOBS}
            own = {name: value for name, value in answer.items() if name not in KNOBS}
            return self.base.but(pipeline=self.base.pipeline.but(**knobs), **own)
        return self.base.but(**answer)

    def refuse(self, answer: Any) -> str | None:
        """Return why this answer is not even run; None if it may be."""
        try:
            before, after = _values(self.base), _values(self.spec(answer))
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            return str(error)
        if before == after:
            return "This is what you were given: change one of the allowed knobs."
        if held := [n for n in after if after[n] != before[n] and n not in self.free]:
            return (
                f"Leave {', '.join(held)} as {'it is' if len(held) == 1 else 'they are'}: "
                f"only {', '.join(self.free)} may change, or it is not the same work."
            )
        return None

    def start(self, answer: Any) -> Any:
        """Start the answer's run."""
        return launch(self.spec(answer))

    def other_work(self, run: Any, baseline: Any) -> str | None:
        """Return why the run did different work than it was asked to; None if it did not."""
        if self.same_losses and self.compares:
            pairs = zip(run.loss[:5], baseline.loss[:5], strict=False)
            if any(abs(a - b) > self.tolerance * max(1.0, abs(b)) for a, b in pairs):
                return "The losses are not those of the same work."
        return None


def _values(spec: Any) -> dict[str, Any]:
    """Return everything that a spec sets, by name."""
    if isinstance(spec, Distributed):
        whole = spec.to_spec()
        return {**whole.pop("pipeline"), **whole}
    return spec.to_dict()


@dataclass(kw_only=True)
class CodeTask(Task):
    """Answered with a function or a class, which `check(answer)` tries out in the bench.

    The check returns {goal: number}. `@task.starts_from` decorates the code to begin from,
    `@task.solved_by` a solution.
    """

    check: Callable[[Any], dict[str, float]]
    kind: str = "function"  # or "class"
    compares: ClassVar[bool] = False  # a check measures its own baseline, beside the answer

    def starts_from(self, code: Any) -> Any:
        """Take the decorated function or class as what to begin from."""
        self.base = code
        return code

    def solved_by(self, code: Any) -> Any:
        """Take the decorated function or class as a solution."""
        self.solution = code
        return code

    @property
    def rules(self) -> str:
        """The kind of answer expected."""
        return f"The answer is a {self.kind}."

    def refuse(self, answer: Any) -> str | None:
        """Return why this answer is not even run; None if it may be."""
        right = isinstance(answer, type) if self.kind == "class" else callable(answer)
        return None if right else f"The answer is a {self.kind}, this is {type(answer).__name__}."

    def start(self, answer: Any) -> Any:
        """Start the run that tries the answer out."""
        task = f"{self.check.__module__}:{self.check.__name__}"
        return launch(Experiment("exercise", {"task": task}), source=Attempt(answer))

    def other_work(self, measured: Any, _baseline: Any) -> str | None:
        """Return why the answer does not count; None if it does."""
        return next((p.values.get("why") for p in measured if p.of == "refused"), None)


def shown(answer: Any) -> Any:
    """Return an answer as the reader is shown it: code as text, a spec as it is."""
    if not callable(answer):
        return answer
    lines = inspect.getsourcelines(answer)[0]
    return "".join(dropwhile(lambda line: line.startswith("@"), lines)).rstrip()


TASKS: dict[str, Task] = {}


def knobs(key: str, title: str, text: str, *goals: Goal, **more: Any) -> KnobTask:
    """Add a challenge that is answered with knobs; `more` are the fields of a KnobTask."""
    TASKS[key] = KnobTask(key=key, title=title, text=text, goals=goals, **more)
    return TASKS[key]


def code(key: str, *hints: str, kind: str = "function", **goals: Goal) -> Callable:
    """Add a challenge that is answered with code; decorates its check.

    The check's docstring is the title and, below it, the task. It returns a number for each goal,
    by name.
    """

    def add(check: Callable[[Any], dict[str, float]]) -> CodeTask:
        title, _, text = inspect.getdoc(check).partition("\n\n")
        TASKS[key] = CodeTask(
            key=key, title=title.rstrip("."), text=" ".join(text.split()), hints=hints, kind=kind,
            goals=tuple(replace(goal, value=counted(name)) for name, goal in goals.items()),
            check=check,
        )  # fmt: skip
        return TASKS[key]

    return add


def all_tasks() -> dict[str, Task]:
    """Return every challenge of the course by its key, in the notebooks' order."""
    for file in sorted(Path(__file__).parent.glob("nb*.py")):
        import_module(f"labkit.course.{file.stem}")
    return dict(sorted(TASKS.items(), key=lambda each: each[0][:2]))
