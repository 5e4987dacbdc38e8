"""Challenges: a task, how an answer to it is measured, and the verdict on it.

What an answer is, and how it is tried, is in `knob_challenge.py` and `code_challenge.py`; the
challenges themselves are in `challenges/`, one file for each notebook.

A result close to its mark is measured again; if the repeats lie on both sides of the mark, it is
too noisy to judge. Whatever the answer is, the user gets a verdict and what the answer measured,
never a traceback of ours. Tries and passes are kept in the score, by the challenge's key.
"""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

from labkit.course import score_book
from labkit.course.goals import Goal
from labkit.course.slow_script import SlowScript
from labkit.knobs import check_names
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.spec import Pipeline

REPEATS = 3  # of a measurement that is close to its mark, baseline included
TOO_NOISY = "Too noisy to judge: repeats lie on both sides of the mark. Run this cell again."
FOLDER = Path(__file__).with_name("challenges")

Answer = Callable[..., Any]  # the user's function or class
Measured = Mapping[Goal, float | None]  # what one try of an answer measured
Finished = TypeVar("Finished", Run, Measurements)
# Of a verdict; an answer whose run did not finish "crashed"
Kind = Literal["passed", "not yet", "too noisy", "no answer", "crashed"]


class Unfinished(Exception):
    """A run that was to be judged did not finish; the message says why."""


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed."""

    key: str
    kind: Kind
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str = ""  # why there is no judgement
    hint: str = ""

    def __bool__(self) -> bool:
        return self.kind == "passed"

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

    @property
    def kind_of_answer(self) -> str:
        """The kind of answer that is expected, as half a sentence: "The answer is a function"."""
        raise NotImplementedError

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, and what it may change."""
        return f"{self.kind_of_answer}."

    def attempt(self, answer: object, number: int) -> Measured:
        """Try an answer for the `number`th time, from 0; raises ValueError, Unfinished."""
        raise NotImplementedError

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session and before it."""
        return score_book.entry("challenges", self.key).get("tries", 0)

    def check(self, answer: object) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.key, "no answer", why="No answer yet.")
        try:
            verdict = self._judge(answer)
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
        if any(goal.near(value) for goal, value in attempts[0].items()):
            attempts += [self.attempt(answer, number) for number in range(1, REPEATS)]
        lines = []
        kind: Kind = "passed"
        for goal in attempts[0]:
            values = [measured[goal] for measured in attempts]
            lines.append(goal.judged(values))
            if not any(map(goal.met, values)):
                kind = "not yet"
            elif not all(map(goal.met, values)) and kind == "passed":
                kind = "too noisy"
        why = TOO_NOISY if kind == "too noisy" else ""
        return Verdict(self.key, kind, tuple(lines), why)

    def _counted(self, verdict: Verdict) -> Verdict:
        """Keep a try in the score; return the verdict with the next hint if it is not a pass."""
        tries = self.tries + 1
        passed = bool(verdict) or score_book.entry("challenges", self.key).get("passed", False)
        score_book.keep("challenges", self.key, passed=passed, tries=tries)
        if verdict:
            return verdict
        return replace(verdict, hint=self.hints[min(tries, len(self.hints)) - 1])

    def __repr__(self) -> str:
        return f"Challenge {self.key}: {self.title}\n{self.text}\n{self.rules}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


def finished(started: Finished) -> Finished:
    """Return what was started when it is over; raises Unfinished."""
    started.wait_or_raise()
    if started.outcome != "finished":
        raise Unfinished(f"It did not finish. {started.error or started.outcome}")
    return started


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
