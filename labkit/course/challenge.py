"""Pose a challenge: show the task, judge an answer, give one hint at a time.

Goals compare with a baseline measured in the same session, never with an absolute time. What is
close to its mark is measured again; if the repeats lie on both sides of the mark, it is too noisy
to judge. Whatever the answer is, the reader gets a verdict and what the answer measured, never a
traceback of ours. Tries and passes are kept in the score, by the challenge's key.
"""

from __future__ import annotations

import base64
import html
import inspect
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.course import score
from labkit.course.task import Goal, Task, Unfinished, find
from labkit.results.result import Result, Table
from labkit.view.display import StaticFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.results.run import Run

REPEATS = 3  # of a measurement that is close to its mark, baseline included
TOO_NOISY = "Too noisy to judge: repeats lie on both sides of the mark. Run this cell again."


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed.

    `kind` is "passed", "not yet", "too noisy", "no answer" or "crashed" (its run did not finish).
    """

    key: str
    kind: str
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str = ""  # why there is no judgement
    hint: str = ""
    run: Run | None = None  # the answer's run, where it is one of a training loop
    baseline: Run | None = None  # the run that it is compared with

    def __bool__(self) -> bool:
        return self.kind == "passed"

    def table(self) -> Table:
        """Return a line for each goal, and below them the reason and the hint."""
        hint = f"Hint: {self.hint}" if self.hint else ""
        title = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=title, foot=(self.why, hint))

    def plot(self) -> Figure:
        """Draw the answer's run over the baseline; ValueError where no training loop was run."""
        if self.run is None:
            raise ValueError(f"{self.key}: this answer has no run of a training loop to draw.")
        return self.run.plot(before=self.baseline)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the runs as JSON types."""
        names = ("key", "kind", "lines", "why", "hint")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        shown = super()._repr_html_()
        if self.run is None:
            return shown
        picture = StaticFigure.of(self.run, self.baseline)
        data = base64.b64encode(picture.png).decode()
        return f"{shown}<img width='{int(picture.width)}' src='data:image/png;base64,{data}'>"


class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    def __init__(self, task: Task):
        """Pose a task."""
        self.task = task

    @property
    def start(self) -> Any:
        """What to change where the answer is changed knobs; None where it is code."""
        return getattr(self.task, "base", None)

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session and, by the score, before it."""
        return score.entry("challenges", self.task.key).get("tries", 0)

    @property
    def passed(self) -> bool:
        """Whether an answer has passed, now or before."""
        return score.entry("challenges", self.task.key).get("passed", False)

    def check(self, answer: Any) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.task.key, "no answer", why="No answer yet.")
        try:
            return self._judge(answer)
        except Unfinished as problem:
            return self._counted(Verdict(self.task.key, "crashed", why=str(problem)))
        except Exception as problem:  # whatever the reader's answer raises
            return self._counted(Verdict(self.task.key, "not yet", why=str(problem)))

    def solution(self) -> Any:
        """Return a solution that passes; after a first try only."""
        if not self.tries:
            return "Try it first: check an answer of your own, then ask again."
        solution = self.task.solution
        return inspect.getsource(solution).rstrip() if callable(solution) else solution

    def _judge(self, answer: object) -> Verdict:
        """Measure the answer, more than once where noise could decide, and compare with the marks.

        Repeats on both sides of a mark are no verdict, unless another goal is clearly missed.
        """
        attempts = [self.task.attempt(answer, 0)]
        last = attempts[0]
        if any(goal.near(value) for goal, value in last.values.items()):
            attempts += [self.task.attempt(answer, number) for number in range(1, REPEATS)]
            last = attempts[-1]
        lines = []
        outcomes = []
        for goal in last.values:
            values = [attempt.values[goal] for attempt in attempts]
            lines.append(judged(goal, values))
            outcomes.append({goal.met(value) for value in values})
        kind = "passed"
        if {False} in outcomes:
            kind = "not yet"
        elif {False, True} in outcomes:
            kind = "too noisy"
        why = TOO_NOISY if kind == "too noisy" else ""
        verdict = Verdict(
            self.task.key, kind, tuple(lines), why, run=last.run, baseline=last.baseline
        )
        return verdict if kind == "too noisy" else self._counted(verdict)

    def _counted(self, verdict: Verdict) -> Verdict:
        """Keep a try in the score; return the verdict with the next hint if it is not a pass."""
        if "DeviceBusy" in verdict.why:
            return verdict  # that was no try
        tries = self.tries + 1
        passed = bool(verdict) or self.passed
        score.keep("challenges", self.task.key, passed=passed, tries=tries)
        if verdict:
            return verdict
        hints = self.task.hints
        return replace(verdict, hint=hints[min(tries, len(hints)) - 1])

    def __repr__(self) -> str:
        task = self.task
        start = f"\n\n{self.start}" if self.start else ""
        return f"Challenge {task.key}: {task.title}\n{task.text}\n{task.rules}{start}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


def judged(goal: Goal, values: list[float | None]) -> str:
    """Say whether a goal is met, and what was measured: the median, and the range of repeats."""
    known = sorted(value for value in values if value is not None)
    measured = f"{median(known):.4g}" if known else "nothing"
    if len(known) > 1 and known[0] != known[-1]:
        measured += f" ({known[0]:.4g} to {known[-1]:.4g})"
    met = [goal.met(value) for value in values]
    answer = "unclear" if any(met) else "no"
    if all(met):
        answer = "yes"
    return f"{answer}: {goal}; measured {measured}"


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, such as "02-feed"; raises ValueError where there is none."""
    return Challenge(find(key))
