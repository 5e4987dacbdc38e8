"""Challenges: a task, how an answer to it is measured, and the verdict on it.

The challenges themselves are in `challenges/`. An answer is a changed spec, which is run, or a
function or class, which a check tries out on the bench. Goals compare with a baseline measured in
the same session, never with an absolute time. Whatever the answer is, the user gets a verdict and
what the answer measured, never a traceback of ours.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from labkit.api import Run, launch
from labkit.results.result import Result, Table
from labkit.spec import Pipeline

TRIES: Counter[str] = Counter()  # of each challenge
KIND = "The answer is a dict of changes or a Pipeline"

Answer = Callable[..., Any]  # the user's function or class


class Goal(NamedTuple):
    """What was measured of an answer, and what it has to be at least, or at most."""

    what: str  # as the user sees it: "samples/s over the baseline's"
    measured: float | None
    at: Literal["least", "most"]
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether it is on the right side of the limit; a missing number is not."""
        if self.measured is None:
            return False
        return self.measured >= self.limit if self.at == "least" else self.measured <= self.limit

    def __str__(self) -> str:
        measured = "nothing" if self.measured is None else f"{self.measured:.4g}"
        is_met = "yes" if self.is_met else "no"
        return f"{is_met}: {self.what}: at {self.at} {self.limit:g}; measured {measured}"


Goals = Sequence[Goal]


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed."""

    key: str
    passed: bool
    lines: tuple[str, ...]  # what was expected and measured, or why there is no judgement
    hint: str = ""

    def __bool__(self) -> bool:
        return self.passed

    def table(self) -> Table:
        """Return a line for each goal, and below them the hint."""
        hint = f"Hint: {self.hint}" if self.hint else ""
        title = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=title, foot=[hint])


@dataclass(frozen=True, kw_only=True, repr=False)
class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    key: str  # "02-feed": notebook and name
    hints: tuple[str, ...]
    example: Pipeline | Answer  # of an answer that passes

    text = ""  # the task
    rules = ""  # the kind of answer that is expected, and what it may change

    def attempt(self, answer: object) -> Goals:
        """Try an answer; raises ValueError where it is none, or fails."""
        raise NotImplementedError

    def check(self, answer: object) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.key, False, ("No answer yet.",))
        TRIES[self.key] += 1
        try:
            goals = self.attempt(answer)
            passed, lines = all(goal.is_met for goal in goals), tuple(map(str, goals))
        except Exception as problem:  # whatever the user's answer raises
            passed, lines = False, (str(problem),)
        hint = "" if passed else self.hints[min(TRIES[self.key], len(self.hints)) - 1]
        return Verdict(self.key, passed, lines, hint)

    def solution(self) -> Pipeline | str:
        """Return a solution that passes; after a first try only."""
        if not TRIES[self.key]:
            return "Try it first: check an answer of your own, then ask again."
        if callable(self.example):
            return inspect.getsource(self.example).rstrip()
        return self.example

    def __repr__(self) -> str:
        return f"Challenge {self.key}: {self.text}\n{self.rules}"


@dataclass(frozen=True, kw_only=True, repr=False)
class KnobChallenge(Challenge):
    """Answered with `start` in which knobs of `free` are changed: a spec, or a dict of changes."""

    text: str
    start: Pipeline
    free: tuple[str, ...]
    goals: Callable[[Run], Goals]

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, what it may change, and of what."""
        return f"{KIND}; only {', '.join(self.free)} may change.\n\n{self.start}"

    def spec(self, answer: object) -> Pipeline:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        spec = self.start.but(**answer) if isinstance(answer, dict) else answer
        if not isinstance(spec, Pipeline):
            raise ValueError(f"{KIND}, this is {type(answer).__name__}.")
        changed = spec.but(**{name: getattr(self.start, name) for name in self.free})
        if changed != self.start:
            raise ValueError(f"Only {', '.join(self.free)} may change, or it is not the same work.")
        return spec

    def attempt(self, answer: object) -> Goals:
        """Run the answer."""
        return self.goals(run_of(self.spec(answer)))


def run_of(spec: Pipeline) -> Run:
    """Run a spec to its end; raises ValueError where it fails."""
    run = launch(spec).wait_or_raise()
    if run.error:
        raise ValueError(run.error)
    return run


baseline = cache(run_of)  # this session's run of what was given


def speedup_over(start: Pipeline, run: Run, least: float) -> Goal:
    """Return the goal to train at least so many times as fast as `start`, once run in a session."""
    speedup = run.compare(baseline(start)).speedup
    return Goal("samples/s over the baseline's", speedup, "least", least)


@dataclass(frozen=True, repr=False)
class CodeChallenge(Challenge):
    """Answered with a function or a class, which `trial` tries out on the bench.

    Its docstring poses the challenge. It raises ValueError where the answer does other work than
    the task asks for.
    """

    trial: Callable[[Answer], Goals]

    @property
    def text(self) -> str:
        """The task."""
        return inspect.getdoc(self.trial) or ""

    @property
    def rules(self) -> str:
        """A function or a class, as the example is."""
        return f"The answer is a {'class' if isinstance(self.example, type) else 'function'}."

    def attempt(self, answer: object) -> Goals:
        """Try the answer out in a process of its own."""
        if not callable(answer):
            raise ValueError(f"{self.rules} This is {type(answer).__name__}.")
        return self.on_the_bench(answer)

    def on_the_bench(self, answer: Answer) -> Goals:
        """Return what is measured of an answer; raises ValueError where that fails."""
        from labkit.view.measuring import measure

        trial = self.trial

        def exercise(_bench: object) -> dict[str, object]:
            return {"goals": trial(answer)}

        row = measure(exercise, wait=False).wait_or_raise().rows.iloc[0]
        if row["error"]:
            raise ValueError(row["error"])
        return [Goal(*goal) for goal in row["goals"]]
