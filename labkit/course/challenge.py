"""Pose a challenge: show the task, check an answer, give one hint at a time.

A goal compares with a baseline measured in the same session, never with an absolute time. What is
measured close to its mark is measured again, and the median counts. Whatever the answer, the reader
gets a verdict, never one of our tracebacks.
"""

from __future__ import annotations

import html
import inspect
import math
import textwrap
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from labkit.course import score
from labkit.course.task import Task, all_tasks
from labkit.knobs import check_names
from labkit.results.launch import launch
from labkit.results.machine import machine
from labkit.results.result import Result, Table

REPEATS = 3  # runs of a result that is close to its mark, baseline included

_baselines: dict[str, list[Any]] = {}  # by task: what was measured in this session


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The outcome of a check; truthy if the challenge is passed.

    `kind` is "passed", "not yet", "no answer", "crashed" (its run did not finish) or "timed out".
    """

    key: str
    kind: str
    lines: tuple[str, ...] = ()  # what was expected, and what was measured
    why: str | None = None  # it was not measured at all
    hint: str | None = None

    def __bool__(self) -> bool:
        return self.kind == "passed"

    def table(self) -> Table:
        """Return the goals, line by line."""
        foot = (self.why or "", f"Hint: {self.hint}" if self.hint else "")
        head = f"{self.key}: {'PASSED' if self else 'not yet'}"
        return Table([(line,) for line in self.lines], title=head, foot=foot)


class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    def __init__(self, task: Task, limit_s: float | None = None):
        """Pose `task`; a run of an answer is stopped after `limit_s`."""
        self.task, self.limit_s, self.tries = task, limit_s, 0

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
        task, pairs = self.task, []
        for count in (1, REPEATS):  # more than once where noise could decide
            while len(pairs) < count:
                pairs.append((self._finished(task.start(answer)), self._baseline(len(pairs))))
            if why := next(filter(None, (task.refused(run) for run, _ in pairs)), None):
                return self._verdict("not yet", why=why)
            found = [[goal.value(*pair) for pair in pairs] for goal in task.goals]
            known = [[value for value in values if value is not None] for values in found]
            medians = [median(values) if values else None for values in known]
            judged = list(zip(task.goals, medians, strict=True))
            if not any(goal.near(value) for goal, value in judged):
                break
        lines = [
            f"{'yes' if goal.met(value) else 'no'}: {goal}; "
            f"measured {'nothing' if value is None else f'{value:.4g}'}"
            for goal, value in judged
        ]
        passed = all(goal.met(value) for goal, value in judged)
        return self._verdict("passed" if passed else "not yet", lines)

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

    def _verdict(self, kind: str, lines: Any = (), why: str | None = None) -> Verdict:
        hint, passed = None, kind == "passed"
        if "DeviceBusy" not in (why or ""):  # that was no try
            self.tries += 1
            score.keep("challenges", self.task.key, passed=passed, tries=self.tries)
            if not passed:
                hint = self.task.hints[min(self.tries, len(self.task.hints)) - 1]
        return Verdict(self.task.key, kind, tuple(lines), why, hint)

    def __repr__(self) -> str:
        task = self.task
        start = f"\n\n{_shown(task.base)}" if task.base else ""
        return f"Challenge {task.key}: {task.title}\n{task.text}\n{task.rules}{start}"

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(repr(self))}</pre>"


def _shown(answer: Any) -> Any:
    """Return an answer as the reader is shown it: code as text, a spec as it is."""
    return textwrap.dedent(inspect.getsource(answer)).rstrip() if callable(answer) else answer


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, as "02-feed"; raises ValueError where there is none."""
    tasks = all_tasks()
    check_names([key], tasks, "challenge")
    return Challenge(tasks[key])
