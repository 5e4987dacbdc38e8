"""Challenges: a task, how an answer to it is measured, and the verdict on it.

A knob challenge is answered with changes to a spec, and judged by a run of the changed spec. A
code challenge is answered with a function or a class, which a check tries out on the bench. The
challenges themselves are in `challenges/`, one file for each notebook.

Goals compare with a baseline measured in the same session, never with an absolute time. A result
close to its mark is measured again; if the repeats lie on both sides of the mark, it is too noisy
to judge. Whatever the answer is, the user gets a verdict and what the answer measured, never a
traceback of ours. Tries and passes are kept in the score, by the challenge's key.
"""

from __future__ import annotations

import base64
import html
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from labkit.course import score
from labkit.course.slow_script import SlowScript
from labkit.knobs import check_names
from labkit.results.launch import launch
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.spec import Pipeline

if TYPE_CHECKING:
    from labkit.bench.stopwatch import Bench

REPEATS = 3  # of a measurement that is close to its mark, baseline included
TOO_NOISY = "Too noisy to judge: repeats lie on both sides of the mark. Run this cell again."
FOLDER = Path(__file__).with_name("challenges")

Answer = Callable[..., Any]  # the user's function or class
Numbers = Mapping[str, float]  # what a check measured, by the `what` of its goals
Measure = Callable[[Run, "Run | None"], "float | None"]  # of an answer's run and the baseline's
Finished = TypeVar("Finished", Run, Measurements)
# Of a verdict; an answer whose run did not finish "crashed"
Kind = Literal["passed", "not yet", "too noisy", "no answer", "crashed"]


class Unfinished(Exception):
    """A run that was to be judged did not finish; the message says why."""


class NeverBegan(Unfinished):
    """Another run kept the device, so the answer was not tried."""


class Refused(Exception):
    """The answer does other work than the task asks for; the message says what it does."""


@dataclass(frozen=True)
class Goal:
    """A number that an answer is judged by, and the range in which it has to be."""

    what: str  # as the user sees it: "samples/s over the baseline's"
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0  # a result within this share of a mark may be noise: it is measured again
    needs_baseline: bool = False  # whether its measure compares with the run of the given spec

    def met(self, value: float | None) -> bool:
        """Return whether `value` is in the range; a missing number is not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        if value is None:
            return False
        marks = (self.at_least, self.at_most)
        return any(abs(value - mark) < self.close * abs(mark) for mark in marks)

    def judged(self, values: list[float | None]) -> str:
        """Say whether it is met, and what was measured: the median, and the range of repeats."""
        known = [value for value in values if value is not None]
        measured = f"{median(known):.4g}" if known else "nothing"
        if len(set(known)) > 1:
            measured += f" ({min(known):.4g} to {max(known):.4g})"
        met = sum(map(self.met, values))
        answer = {0: "no", len(values): "yes"}.get(met, "unclear")
        return f"{answer}: {self}; measured {measured}"

    def __str__(self) -> str:
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"


def faster(times: float) -> Goal:
    """Return the goal of a multiple of the baseline's samples/s; see `speedup`."""
    return Goal("samples/s over the baseline's", at_least=times, close=0.1, needs_baseline=True)


def speedup(run: Run, baseline: Run | None) -> float | None:
    """Return how many times the baseline's samples/s a run has; None where one is not known."""
    before = baseline.throughput if baseline else None
    return run.throughput / before if run.throughput and before else None


@dataclass(frozen=True)
class Attempt:
    """What one try of an answer measured."""

    values: Mapping[Goal, float | None]
    run: Run | None = None  # of the answer, where that is a spec
    baseline: Run | None = None


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed."""

    key: str
    kind: Kind
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str = ""  # why there is no judgement
    hint: str = ""
    attempt: Attempt | None = None

    def __bool__(self) -> bool:
        return self.kind == "passed"

    def table(self) -> Table:
        """Return a line for each goal, and below them the reason and the hint."""
        hint = f"Hint: {self.hint}" if self.hint else ""
        title = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=title, foot=(self.why, hint))

    def _repr_html_(self) -> str:
        from labkit.view.display import StaticFigure  # the bench, which imports this, draws nothing

        shown = super()._repr_html_()
        if self.attempt is None or self.attempt.run is None:
            return shown
        picture = StaticFigure.of(self.attempt.run, self.attempt.baseline)
        data = base64.b64encode(picture.png).decode()
        return f"{shown}<img width='{int(picture.width)}' src='data:image/png;base64,{data}'>"


@dataclass(frozen=True, repr=False)
class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    key: str  # "02-feed": notebook and name
    title: str
    text: str
    hints: tuple[str, ...]
    example: Pipeline | SlowScript | Answer  # of an answer that passes

    @property
    def kind_of_answer(self) -> str:
        """The kind of answer that is expected, as half a sentence: "The answer is a function"."""
        raise NotImplementedError

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, and what it may change."""
        return f"{self.kind_of_answer}."

    def attempt(self, answer: object, number: int) -> Attempt:
        """Try an answer for the `number`th time, from 0; raises ValueError, Unfinished."""
        raise NotImplementedError

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session and before it."""
        return score.entry("challenges", self.key).get("tries", 0)

    def check(self, answer: object) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.key, "no answer", why="No answer yet.")
        try:
            verdict = self._judge(answer)
        except NeverBegan as why:
            return Verdict(self.key, "crashed", why=str(why))  # that was no try
        except Unfinished as why:
            verdict = Verdict(self.key, "crashed", why=str(why))
        except Exception as problem:  # whatever the user's answer raises
            verdict = Verdict(self.key, "not yet", why=str(problem))
        return verdict if verdict.kind == "too noisy" else self._counted(verdict)

    def solution(self) -> Pipeline | SlowScript | str:
        """Return a solution that passes; after a first try only."""
        if not self.tries:
            return "Try it first: check an answer of your own, then ask again."
        if callable(self.example):
            return inspect.getsource(self.example).rstrip()
        return self.example

    def _judge(self, answer: object) -> Verdict:
        """Measure the answer, more than once where noise could decide, and compare with the marks.

        Repeats on both sides of a mark are no verdict, unless another goal is clearly missed.
        """
        attempts = [self.attempt(answer, 0)]
        if any(goal.near(value) for goal, value in attempts[0].values.items()):
            attempts += [self.attempt(answer, number) for number in range(1, REPEATS)]
        lines = []
        kind: Kind = "passed"
        for goal in attempts[0].values:
            values = [attempt.values[goal] for attempt in attempts]
            lines.append(goal.judged(values))
            if not any(map(goal.met, values)):
                kind = "not yet"
            elif not all(map(goal.met, values)) and kind == "passed":
                kind = "too noisy"
        why = TOO_NOISY if kind == "too noisy" else ""
        return Verdict(self.key, kind, tuple(lines), why, attempt=attempts[-1])

    def _counted(self, verdict: Verdict) -> Verdict:
        """Keep a try in the score; return the verdict with the next hint if it is not a pass."""
        tries = self.tries + 1
        passed = bool(verdict) or score.entry("challenges", self.key).get("passed", False)
        score.keep("challenges", self.key, passed=passed, tries=tries)
        if verdict:
            return verdict
        return replace(verdict, hint=self.hints[min(tries, len(self.hints)) - 1])

    def __repr__(self) -> str:
        return f"Challenge {self.key}: {self.title}\n{self.text}\n{self.rules}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


@dataclass(frozen=True, repr=False)
class KnobChallenge(Challenge):
    """Answered with `start` in which knobs of `free` are changed: a spec, or a dict of changes."""

    goals: Mapping[Goal, Measure]
    start: Pipeline | SlowScript
    free: tuple[str, ...]

    @property
    def kind_of_answer(self) -> str:
        """A dict or a spec."""
        return f"The answer is a dict of changes or a {type(self.start).__name__}"

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, what it may change, and of what."""
        free = ", ".join(self.free)
        return f"{self.kind_of_answer}; only {free} may change.\n\n{self.start}"

    def spec(self, answer: object) -> Pipeline | SlowScript:
        """Return what is to be run; raises ValueError, saying why, if that is not an answer."""
        spec = self.start.but(**answer) if isinstance(answer, dict) else answer
        if not isinstance(spec, type(self.start)):
            raise ValueError(f"{self.kind_of_answer}, this is {type(answer).__name__}.")
        given = vars(self.start)
        changed = [name for name, value in vars(spec).items() if value != given[name]]
        if not changed:
            raise ValueError("This is what you were given: change one of the allowed knobs.")
        if held := [name for name in changed if name not in self.free]:
            only = f"only {', '.join(self.free)} may change, or it is not the same work"
            raise ValueError(f"Leave {', '.join(held)} as given: {only}.")
        return spec

    def attempt(self, answer: object, number: int) -> Attempt:
        """Run the answer, and once in a session the `number`th baseline."""
        run = finished(launch(self.spec(answer)))
        compares = any(goal.needs_baseline for goal in self.goals)
        baseline = baseline_run(self.start, number) if compares else None
        values = {goal: measure(run, baseline) for goal, measure in self.goals.items()}
        return Attempt(values, run, baseline)


@cache
def baseline_run(base: Pipeline | SlowScript, _number: int) -> Run:
    """Return the run of the given spec that has this number in this session."""
    return finished(launch(base))


def finished(started: Finished) -> Finished:
    """Return what was started when it is over; raises Unfinished."""
    started.wait_or_raise()
    if started.outcome != "finished":
        kind = NeverBegan if started.found_device_busy else Unfinished
        raise kind(f"It did not finish. {started.error or started.outcome}")
    return started


@dataclass(frozen=True, repr=False)
class CodeChallenge(Challenge):
    """Answered with a function or a class, which `numbers_of` tries out on the bench."""

    goals: tuple[Goal, ...]
    numbers_of: Callable[[Answer], Numbers]

    @property
    def kind_of_answer(self) -> str:
        """A function or a class, as the example is."""
        return f"The answer is a {'class' if isinstance(self.example, type) else 'function'}"

    def attempt(self, answer: object, number: int) -> Attempt:
        """Try the answer out in a process of its own."""
        is_kind = isinstance(answer, type) or not isinstance(self.example, type)
        if not callable(answer) or not is_kind:
            raise ValueError(f"{self.kind_of_answer}, this is {type(answer).__name__}.")
        measured = self.on_the_bench(answer)
        if isinstance(measured, str):
            raise ValueError(measured)
        return Attempt({goal: measured.get(goal.what) for goal in self.goals})

    def on_the_bench(self, answer: Answer) -> Numbers | str:
        """Return what `tried_out` does, in a process of its own."""
        from labkit.view.measuring import measure

        key = self.key

        def exercise(bench: Bench) -> dict[str, object]:
            return {"measured": tried_out(key, answer)}

        row = finished(measure(exercise, wait=False)).rows.iloc[0]
        return row["error"] or row["measured"]


def code(
    key: str, *, hints: tuple[str, ...], goals: tuple[Goal, ...], example: Answer
) -> Callable[[Callable[[Answer], Numbers]], CodeChallenge]:
    """Make a check the challenge that its docstring poses.

    A check takes an answer and returns a number for each goal, by its `what`, or raises Refused.
    """

    def posed(check: Callable[[Answer], Numbers]) -> CodeChallenge:
        title, _, text = (inspect.getdoc(check) or "").partition("\n\n")
        text = " ".join(text.split())
        return CodeChallenge(key, title.rstrip("."), text, hints, example, goals, check)

    return posed


def tried_out(key: str, answer: Answer) -> Numbers | str:
    """Return what a challenge's check measures of an answer, or why it is refused."""
    posed = challenge(key)
    assert isinstance(posed, CodeChallenge)
    try:
        return posed.numbers_of(answer)
    except Refused as why:
        return str(why)
    except Exception as error:  # the user's code may raise anything
        return f"It raised {type(error).__name__}: {str(error)[:300]}"


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, such as "02-feed"; raises ValueError where there is none."""
    found = all_challenges(key[:2])
    if key not in found:
        check_names([key], all_challenges(), "challenge")
    return found[key]


def all_challenges(notebook: str = "") -> dict[str, Challenge]:
    """Return the challenges of the course, or of a notebook such as "02", by key, in order."""
    found = {}
    for path in sorted(FOLDER.glob(f"nb{notebook}*.py")):
        module = import_module(f"labkit.course.challenges.{path.stem}")
        posed = [each for each in vars(module).values() if isinstance(each, Challenge)]
        found |= {each.key: each for each in posed}
    return found
