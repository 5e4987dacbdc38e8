"""Challenges: a task, how an answer to it is measured, and the verdict on it.

What an answer is, and how it is tried, is in `knob_challenge.py` and `code_challenge.py`; the
challenges themselves are in `challenges/`, one file for each notebook.

A result that misses its mark by so little that noise may be the reason is measured again. Whatever
the answer is, the user gets a verdict and what the answer measured, never a traceback of ours.
Tries and passes are kept in the score, by the challenge's key.
"""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from labkit.api import Measurements, Run
from labkit.course import score_book
from labkit.course.goals import Goal
from labkit.course.slow_script import SlowScript
from labkit.knobs import check_names
from labkit.results.result import Result, Table
from labkit.spec import Pipeline

MOST_REPEATS = 3  # of a measurement that hardly misses its mark
FOLDER = Path(__file__).with_name("challenges")

Answer = Callable[..., Any]  # the user's function or class
Measured = Mapping[Goal, float | None]  # what one try of an answer measured
Finished = TypeVar("Finished", Run, Measurements)


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

    @property
    def rules(self) -> str:
        """The kind of answer that is expected, and what it may change."""
        raise NotImplementedError

    def attempt(self, answer: object) -> Measured:
        """Try an answer; raises ValueError where it is none, or does not finish."""
        raise NotImplementedError

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session and before it."""
        return score_book.entry("challenges", self.key).get("tries", 0)

    def check(self, answer: object) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.key, passed=False, why="No answer yet.")
        lines = ()
        why = ""
        passed = False
        try:
            measured = self._measured(answer)
            lines = tuple(goal.judged(value) for goal, value in measured.items())
            passed = all(goal.met(value) for goal, value in measured.items())
        except Exception as problem:  # whatever the user's answer raises
            why = str(problem)
        tries = self.tries + 1
        before = score_book.entry("challenges", self.key).get("passed", False)
        score_book.keep("challenges", self.key, passed=passed or before, tries=tries)
        hint = "" if passed else self.hints[min(tries, len(self.hints)) - 1]
        return Verdict(self.key, passed, lines, why, hint)

    def _measured(self, answer: object) -> Measured:
        """Measure the answer, and again where noise may have kept it from its marks."""
        measured = {}
        for _ in range(MOST_REPEATS):
            measured = self.attempt(answer)
            is_met = all(goal.met(value) for goal, value in measured.items())
            if is_met or not all(goal.near(value) for goal, value in measured.items()):
                break
        return measured

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


def finished(started: Finished) -> Finished:
    """Return what was started when it is over; raises ValueError where it did not finish."""
    started.wait_or_raise()
    if started.outcome != "finished":
        raise ValueError(f"It did not finish. {started.error or started.outcome}")
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
