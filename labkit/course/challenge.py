"""Challenges: a task, how an answer to it is measured, and the verdict on it.

The challenges themselves are in `challenges/`. An answer is a changed spec, which is run, or a
function or class, which a check tries out on the bench. Goals compare with a baseline measured in
the same session, never with an absolute time. Whatever the answer is, the user gets a verdict and
what the answer measured, never a traceback of ours.
"""

from __future__ import annotations

import html
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.api import Measurements, Run, launch
from labkit.course.slow_script import SlowScript
from labkit.knobs import check_names
from labkit.results.result import Result, Table
from labkit.spec import Pipeline

if TYPE_CHECKING:
    from labkit.bench.stopwatch import Bench

TRIES: Counter[str] = Counter()  # of each challenge
FASTER = "samples/s over the baseline's"

Answer = Callable[..., Any]  # the user's function or class
Finished = TypeVar("Finished", Run, Measurements)


class Refused(Exception):
    """The answer does other work than the task asks for; the message says what it does."""


@dataclass(frozen=True)
class Goal:
    """A number that an answer is judged by, and the range in which it has to be."""

    what: str  # as the user sees it: "samples/s over the baseline's"
    at_least: float = -math.inf
    at_most: float = math.inf

    def met(self, value: float | None) -> bool:
        """Return whether `value` is in the range; a missing number is not."""
        return value is not None and self.at_least <= value <= self.at_most

    def judged(self, value: float | None) -> str:
        """Say whether it is met, and what was measured."""
        measured = "nothing" if value is None else f"{value:.4g}"
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        is_met = "yes" if self.met(value) else "no"
        return f"{is_met}: {self.what}: {' and '.join(words)}; measured {measured}"


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed."""

    key: str
    passed: bool
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str = ""  # why there is no judgement
    hint: str = ""

    def __bool__(self) -> bool:
        return self.passed

    def table(self) -> Table:
        """Return a line for each goal, and below them the reason and the hint."""
        hint = f"Hint: {self.hint}" if self.hint else ""
        title = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=title, foot=(self.why, hint))


@dataclass(frozen=True, repr=False)
class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    key: str  # "02-feed": notebook and name
    title: str
    text: str
    hints: tuple[str, ...]
    example: Pipeline | SlowScript | Answer  # of an answer that passes

    rules = ""  # the kind of answer that is expected, and what it may change

    def attempt(self, answer: object) -> Mapping[Goal, float | None]:
        """Try an answer; raises ValueError where it is none, or does not finish."""
        raise NotImplementedError

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session."""
        return TRIES[self.key]

    def check(self, answer: object) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.key, passed=False, why="No answer yet.")
        measured = {}
        why = ""
        try:
            measured = self.attempt(answer)
        except Exception as problem:  # whatever the user's answer raises
            why = str(problem)
        passed = not why and all(goal.met(value) for goal, value in measured.items())
        TRIES[self.key] += 1
        hint = "" if passed else self.hints[min(self.tries, len(self.hints)) - 1]
        lines = tuple(goal.judged(value) for goal, value in measured.items())
        return Verdict(self.key, passed, lines, why, hint)

    def solution(self) -> Pipeline | SlowScript | str:
        """Return a solution that passes; after a first try only."""
        if not self.tries:
            return "Try it first: check an answer of your own, then ask again."
        if callable(self.example):
            return inspect.getsource(self.example).rstrip()
        return self.example

    def __repr__(self) -> str:
        return f"Challenge {self.key}: {self.title}\n{self.text}\n{self.rules}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


@dataclass(frozen=True, repr=False)
class KnobChallenge(Challenge):
    """Answered with `start` in which knobs of `free` are changed: a spec, or a dict of changes."""

    start: Pipeline | SlowScript
    free: tuple[str, ...]
    faster: float | None = None  # a multiple of the samples/s of `start`
    goals: Mapping[Goal, Callable[[Run], float | None]] = field(default_factory=dict)

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, what it may change, and of what."""
        return f"{self._kind}; only {', '.join(self.free)} may change.\n\n{self.start}"

    @property
    def _kind(self) -> str:
        return f"The answer is a dict of changes or a {type(self.start).__name__}"

    def spec(self, answer: object) -> Pipeline | SlowScript:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        spec = self.start.but(**answer) if isinstance(answer, dict) else answer
        if not isinstance(spec, type(self.start)):
            raise ValueError(f"{self._kind}, this is {type(answer).__name__}.")
        given = vars(self.start)
        changed = [name for name, value in vars(spec).items() if value != given[name]]
        if not changed:
            raise ValueError("This is what you were given: change one of the allowed knobs.")
        if held := [name for name in changed if name not in self.free]:
            only = f"only {', '.join(self.free)} may change, or it is not the same work"
            raise ValueError(f"Leave {', '.join(held)} as given: {only}.")
        return spec

    def attempt(self, answer: object) -> Mapping[Goal, float | None]:
        """Run the answer, and once in a session the baseline."""
        run = run_of(self.spec(answer))
        measured = {goal: of(run) for goal, of in self.goals.items()}
        if self.faster is not None:
            speedup = run.compare(baseline(self.start)).speedup
            measured[Goal(FASTER, at_least=self.faster)] = speedup
        return measured


def run_of(spec: Pipeline | SlowScript) -> Run:
    """Run a spec to its end."""
    return finished(launch(spec))


baseline = cache(run_of)  # this session's run of what was given


def finished(started: Finished) -> Finished:
    """Return what was started when it is over; raises ValueError where it did not finish."""
    started.wait_or_raise()
    if started.outcome != "finished":
        raise ValueError(f"It did not finish. {started.error or started.outcome}")
    return started


@dataclass(frozen=True, repr=False)
class CodeChallenge(Challenge):
    """Answered with a function or a class, which `numbers_of` tries out on the bench."""

    goals: tuple[Goal, ...]
    numbers_of: Callable[[Answer], Mapping[str, float]]

    @property
    def rules(self) -> str:
        """A function or a class, as the example is."""
        return f"The answer is a {'class' if isinstance(self.example, type) else 'function'}."

    def attempt(self, answer: object) -> Mapping[Goal, float | None]:
        """Try the answer out in a process of its own."""
        if not callable(answer):
            raise ValueError(f"{self.rules} This is {type(answer).__name__}.")
        measured = self.on_the_bench(answer)
        return {goal: measured.get(goal.what) for goal in self.goals}

    def on_the_bench(self, answer: Answer) -> Mapping[str, float]:
        """Return what is measured of an answer; raises ValueError where that fails."""
        from labkit.view.measuring import measure

        key = self.key

        def exercise(bench: Bench) -> dict[str, object]:
            posed = challenge(key)
            assert isinstance(posed, CodeChallenge)
            return {"measured": posed.numbers_of(answer)}

        row = finished(measure(exercise, wait=False)).rows.iloc[0]
        if row["error"]:
            raise ValueError(row["error"])
        return row["measured"]


def code(
    key: str, *, hints: tuple[str, ...], goals: tuple[Goal, ...], example: Answer
) -> Callable[[Callable[[Answer], Mapping[str, float]]], CodeChallenge]:
    """Make a check the challenge that its docstring poses.

    A check takes an answer and returns a number for each goal, by its `what`, or raises Refused.
    """

    def posed(check: Callable[[Answer], Mapping[str, float]]) -> CodeChallenge:
        title, _, text = (inspect.getdoc(check) or "").partition("\n\n")
        text = " ".join(text.split())
        return CodeChallenge(key, title.rstrip("."), text, hints, example, goals, check)

    return posed


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, such as "02-feed"; raises ValueError where there is none."""
    posed = challenges()
    check_names([key], sorted(posed), "challenge")
    return posed[key]


@cache
def challenges() -> dict[str, Challenge]:
    """Return all challenges, by key."""
    from labkit.course.challenges import knobs, plain_python, pytorch

    return {
        each.key: each
        for module in (knobs, plain_python, pytorch)
        for each in vars(module).values()
        if isinstance(each, Challenge)
    }
