"""What a challenge asks for: goals, and how an answer to it is measured.

A knob challenge is answered with changes of a spec, and judged by what a run of that measures. A
code challenge is answered with a function or a class, which a check tries out on the bench. The
tasks themselves are in `challenges/`, one file for each notebook.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.course.slow_script import SlowScript
from labkit.knobs import check_names
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.measurements import Measurements
from labkit.results.run import Run
from labkit.spec import Pipeline

if TYPE_CHECKING:
    from labkit.bench.measure import Bench
    from labkit.course.checking import Answer, Numbers

REFUSED = "refused"
NOTEBOOKS = tuple(f"{number:02}" for number in range(13))

Measured = TypeVar("Measured", Run, Measurements)
Measure = Callable[[Run, "Run | None"], "float | None"]  # of an answer's run and the baseline's


class Unfinished(Exception):
    """A run that was to be judged did not finish; the message says why."""


@dataclass(frozen=True)
class Goal:
    """A number that an answer is judged by, and the range in which it has to be."""

    what: str  # as the reader sees it: "samples/s over the baseline's"
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0  # within this share of a mark noise could decide: it is measured again

    def met(self, value: float | None) -> bool:
        """Return whether `value` is in the range; a missing number is not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        if value is None:
            return False
        marks = (self.at_least, self.at_most)
        return any(abs(value - mark) < self.close * abs(mark) for mark in marks)

    def __str__(self) -> str:
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"


def faster(times: float) -> Goal:
    """Return the goal to train so many times the baseline's samples/s; see `speedup`."""
    return Goal("samples/s over the baseline's", at_least=times, close=0.1)


def speedup(run: Run, baseline: Run | None) -> float | None:
    """Return how many times the baseline's samples/s a run has; None where one is not known."""
    before = baseline.throughput if baseline else None
    return run.throughput / before if run.throughput and before else None


@dataclass(frozen=True)
class Attempt:
    """What one try of an answer measured."""

    values: Mapping[Goal, float | None]
    run: Run | None = None  # the answer's, where it is one of a training loop
    baseline: Run | None = None


@dataclass(frozen=True)
class Task:
    """The common part of both kinds of challenge."""

    key: str  # "02-feed": notebook and name
    title: str
    text: str
    hints: tuple[str, ...]
    solution: Pipeline | SlowScript | Answer

    @property
    def rules(self) -> str:
        """The kind of answer that is expected."""
        raise NotImplementedError

    def attempt(self, answer: object, number: int) -> Attempt:
        """Try an answer for the `number`th time, from 0; raises ValueError, Refused, Unfinished."""
        raise NotImplementedError


@dataclass(frozen=True)
class KnobTask(Task):
    """Answered with `base` in which knobs of `free` are changed: a spec, or a dict of changes."""

    goals: Mapping[Goal, Measure]
    base: Pipeline | SlowScript
    free: tuple[str, ...]
    compares: bool = True  # with a run of `base`
    cpu_only: bool = False  # its model is sized for a CPU: a GPU would always wait for its data

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, and what it may change."""
        kind = type(self.base).__name__
        return (
            f"The answer is a dict of changes or a {kind}; only {', '.join(self.free)} may change."
        )

    def spec(self, answer: object) -> Pipeline | SlowScript:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        spec = self.base.but(**answer) if isinstance(answer, dict) else answer
        if not isinstance(spec, type(self.base)):
            raise ValueError(f"{self.rules.split(';')[0]}, this is {type(answer).__name__}.")
        given = vars(self.base)
        changed = [name for name, value in vars(spec).items() if value != given[name]]
        if not changed:
            raise ValueError("This is what you were given: change one of the allowed knobs.")
        if held := [name for name in changed if name not in self.free]:
            only = f"only {', '.join(self.free)} may change, or it is not the same work"
            raise ValueError(f"Leave {', '.join(held)} as given: {only}.")
        return spec

    def attempt(self, answer: object, number: int) -> Attempt:
        """Run the answer, and once in a session the `number`th baseline."""
        if self.cpu_only and machine().kind != "cpu":
            raise ValueError("Its model is sized for a CPU; here is a GPU.")
        run = finished(launch(self.spec(answer)), Run)
        baseline = self.baseline(number) if self.compares else None
        values = {goal: measure(run, baseline) for goal, measure in self.goals.items()}
        return Attempt(values, run, baseline)

    def baseline(self, number: int) -> Run:
        """Return this session's run of `base` of that number."""
        kept = _baselines.setdefault(self.key, [])
        while len(kept) <= number:
            kept.append(finished(launch(self.base), Run))
        return kept[number]


_baselines: dict[str, list[Run]] = {}  # by task: what was measured in this session


def finished(started: object, kind: type[Measured]) -> Measured:
    """Return a run, which is of this kind, when it is over; raises Unfinished."""
    assert isinstance(started, kind)
    started.wait_or_raise()
    if started.outcome != "finished":
        raise Unfinished(f"It did not finish. {started.error or started.outcome}")
    return started


@dataclass(frozen=True)
class CodeTask(Task):
    """Answered with a function or a class, which `check` tries out on the bench."""

    goals: tuple[Goal, ...]
    check: Callable[[Answer], Numbers]

    @property
    def rules(self) -> str:
        """The kind of answer that is expected."""
        return f"The answer is a {'class' if isinstance(self.solution, type) else 'function'}."

    def attempt(self, answer: object, number: int) -> Attempt:
        """Try the answer out in a process of its own."""
        from labkit.course.checking import Refused

        kind = type if isinstance(self.solution, type) else object
        if not callable(answer) or not isinstance(answer, kind):
            raise ValueError(f"{self.rules[:-1]}, this is {type(answer).__name__}.")
        measured = self.on_the_bench(answer)
        if REFUSED in measured:
            raise Refused(measured[REFUSED])
        return Attempt({goal: measured.get(goal.what) for goal in self.goals})

    def on_the_bench(self, answer: Answer) -> Mapping[str, Any]:
        """Return what `tried_out` does, in a process of its own."""
        from labkit.view.measuring import measure

        key = self.key

        def exercise(bench: Bench) -> dict[str, object]:
            return {"measured": tried_out(key, answer)}

        row = finished(measure(exercise, wait=False), Measurements).rows.iloc[0]
        return {REFUSED: row["error"]} if row["error"] else row["measured"]


def code(
    key: str, *, hints: tuple[str, ...], goals: tuple[Goal, ...], solution: Answer
) -> Callable[[Callable[[Answer], Numbers]], CodeTask]:
    """Make a check the task that its docstring poses.

    A check takes an answer and returns a number for each goal, by its `what`, or raises Refused.
    """

    def posed(check: Callable[[Answer], Numbers]) -> CodeTask:
        title, _, text = (inspect.getdoc(check) or "").partition("\n\n")
        text = " ".join(text.split())
        return CodeTask(key, title.rstrip("."), text, hints, solution, goals, check)

    return posed


def tried_out(key: str, answer: Answer) -> Mapping[str, Any]:
    """Return what a challenge's check measures of an answer, or {REFUSED: why not}."""
    from labkit.course.checking import Refused

    task = find(key)
    assert isinstance(task, CodeTask)
    try:
        return task.check(answer)
    except Refused as why:
        return {REFUSED: str(why)}
    except Exception as error:  # the reader's code may raise anything
        return {REFUSED: f"It raised {type(error).__name__}: {str(error)[:300]}"}


def find(key: str) -> Task:
    """Return a task by its key, such as "02-feed"; raises ValueError where there is none."""
    number = key[:2]
    tasks = tasks_of(number) if number in NOTEBOOKS else {}
    if key not in tasks:
        check_names([key], all_tasks(), "challenge")
    return tasks[key]


def tasks_of(number: str) -> dict[str, Task]:
    """Return the tasks of a notebook, such as "02", by key."""
    module = import_module(f"labkit.course.challenges.nb{number}")
    return {value.key: value for value in vars(module).values() if isinstance(value, Task)}


def all_tasks() -> dict[str, Task]:
    """Return every task of the course by its key, in the notebooks' order."""
    tasks: dict[str, Task] = {}
    for number in NOTEBOOKS:
        tasks |= tasks_of(number)
    return tasks
