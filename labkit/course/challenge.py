"""Pose a challenge: show the task, check an answer, give one hint at a time.

A goal compares with a baseline measured in the same session, never with an absolute time. What is
measured close to its mark is measured again; where the repeats lie on both sides of the mark, it is
too noisy to judge. Whatever the answer, the reader gets a verdict and what the answer measured,
never one of our tracebacks. Tries and passes are kept in the score, by the challenge's name.
"""

from __future__ import annotations

import base64
import html
import inspect
import math
import textwrap
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from labkit.course import score
from labkit.course.task import Goal, Task, all_tasks
from labkit.knobs import check_names
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.view.display import StaticFigure

REPEATS = 3  # runs of a result that is close to its mark, baseline included
TOO_NOISY = "Too noisy to judge: repeats lie on both sides of the mark. Run this cell again."

_baselines: dict[str, list[Any]] = {}  # by task: what was measured in this session


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed.

    `kind` is "passed", "not yet", "too noisy", "no answer", "crashed" (its run did not finish) or
    "timed out".
    """

    key: str
    kind: str
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str | None = None  # why there is no judgement
    hint: str | None = None
    run: Run | None = None  # the answer's run, where it is one of a training loop
    baseline: Run | None = None  # the run that it is compared with

    def __bool__(self) -> bool:
        return self.kind == "passed"

    def table(self) -> Table:
        """Return the goals, line by line."""
        foot = (self.why or "", f"Hint: {self.hint}" if self.hint else "")
        head = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=head, foot=foot)

    def plot(self) -> Any:
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

    def __init__(self, task: Task, limit_s: float | None = None):
        """Pose `task`; a run of an answer is stopped after `limit_s`."""
        self.task = task
        self.limit_s = limit_s

    @property
    def tries(self) -> int:
        """How many answers were judged so far, in this session and, by the score, before it."""
        tries = self._kept.get("tries")
        return tries if isinstance(tries, int) else 0

    @property
    def passed(self) -> bool:
        """Whether an answer has passed, now or before."""
        return self._kept.get("passed") is True

    @property
    def _kept(self) -> dict[str, Any]:
        return score.read()["challenges"].get(self.task.key, {})

    def check(self, answer: Any) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return Verdict(self.task.key, "no answer", why="No answer yet.")
        try:
            if self.task.cpu_only and machine().kind != "cpu":
                why = "Its model is sized for a CPU; here is a GPU."
                return self._verdict("not yet", why=why)
            return self._judge(answer)
        except Exception as problem:
            kinds = {TimeoutError: "timed out", ChildProcessError: "crashed"}
            return self._verdict(kinds.get(type(problem), "not yet"), why=str(problem))

    def solution(self) -> Any:
        """Return a solution that passes; after a first try only."""
        if not self.tries:
            return "Try it first: check an answer of your own, then ask again."
        return _shown(self.task.solution)

    def _judge(self, answer: Any) -> Verdict:
        """Measure the answer, more than once where noise could decide, and compare with the marks.

        Repeats on both sides of a mark are no verdict, unless another goal is clearly missed.
        """
        task = self.task
        pairs: list[tuple[Any, Any]] = []
        for count in (1, REPEATS):
            while len(pairs) < count:
                pairs.append((self._finished(task.start(answer)), self._baseline(len(pairs))))
            if why := next(filter(None, (task.refused(run) for run, _ in pairs)), None):
                return self._verdict("not yet", why=why)
            found = {goal: [goal.value(*pair) for pair in pairs] for goal in task.goals}
            if not any(goal.near(values[0]) for goal, values in found.items()):
                break
        lines = [_judged(goal, values) for goal, values in found.items()]
        run, baseline = pairs[-1]
        seen = {"run": run, "baseline": baseline} if isinstance(run, Run) else {}
        outcomes = [{goal.met(value) for value in values} for goal, values in found.items()]
        if {False} in outcomes:
            return self._verdict("not yet", lines, **seen)
        if {False, True} in outcomes:
            return Verdict(task.key, "too noisy", tuple(lines), why=TOO_NOISY, **seen)
        return self._verdict("passed", lines, **seen)

    def _baseline(self, number: int) -> Any:
        """Return the session's run of the baseline of this number, made where there is none."""
        if not self.task.compares:
            return None
        kept = _baselines.setdefault(self.task.key, [])
        while len(kept) <= number:
            kept.append(self._finished(launch(self.task.against or self.task.base)))
        return kept[number]

    def _finished(self, run: Any) -> Any:
        """Return a run when it is over; raises OSErrors that say why it did not finish."""
        deadline = time.monotonic() + (self.limit_s or math.inf)
        run.wait_or_raise(lambda run: time.monotonic() > deadline and run.stop())
        if run.outcome == "finished":
            return run
        if time.monotonic() > deadline:
            raise TimeoutError(f"A run was stopped after {self.limit_s:g} s.")
        raise ChildProcessError(f"It did not finish. {run.error or run.outcome}")

    def _verdict(self, kind: str, lines: Any = (), why: str | None = None, **seen: Any) -> Verdict:
        """Count the try, keep what came out, and return it with the next hint."""
        hint = None
        passed = kind == "passed"
        if "DeviceBusy" not in (why or ""):  # that was no try
            tries = self.tries + 1
            score.keep("challenges", self.task.key, passed=passed or self.passed, tries=tries)
            if not passed:
                hint = self.task.hints[min(tries, len(self.task.hints)) - 1]
        return Verdict(self.task.key, kind, tuple(lines), why, hint, **seen)

    def __repr__(self) -> str:
        task = self.task
        start = f"\n\n{_shown(task.base)}" if task.base else ""
        return f"Challenge {task.key}: {task.title}\n{task.text}\n{task.rules}{start}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


def _judged(goal: Goal, values: list[float | None]) -> str:
    """Say whether a goal is met, and what was measured: the median, and the range of repeats."""
    known = sorted(value for value in values if value is not None)
    measured = f"{median(known):.4g}" if known else "nothing"
    if len(known) > 1 and known[0] != known[-1]:
        measured += f" ({known[0]:.4g} to {known[-1]:.4g})"
    met = {goal.met(value) for value in values}
    answer = "yes" if met == {True} else "no" if met == {False} else "unclear"
    return f"{answer}: {goal}; measured {measured}"


def _shown(answer: Any) -> Any:
    """Return an answer as the reader is shown it: code as text, a spec as it is."""
    return textwrap.dedent(inspect.getsource(answer)).rstrip() if callable(answer) else answer


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, as "02-feed"; raises ValueError where there is none."""
    tasks = all_tasks()
    check_names([key], tasks, "challenge")
    return Challenge(tasks[key])
