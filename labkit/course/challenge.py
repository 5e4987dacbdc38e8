"""A challenge as the reader meets it: the task, `.check(answer)`, one hint at a time.

The answer is run in a process of its own and judged on what that measured. Whatever the answer is,
the reader gets a verdict, never a traceback of ours.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from labkit.course import score, tasks
from labkit.course.attempt import Attempt, Unsendable
from labkit.course.task import Goal, KnobTask, Task, middle
from labkit.results.launch import launch
from labkit.results.machine import machine
from labkit.results.measurements import Experiment
from labkit.spec import Pipeline

REPEATS = 3  # runs of a result that is close to its mark, baseline included


@dataclass(frozen=True)
class Verdict:
    """What a check found; truthy where the challenge is passed."""

    key: str
    passed: bool
    lines: tuple[str, ...]  # what was expected, and what was measured
    why: str | None = None  # it was not measured at all
    hint: str | None = None

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"key": self.key, "passed": self.passed, "lines": list(self.lines), "why": self.why}

    def __repr__(self) -> str:
        head = f"{self.key}: {'PASSED' if self.passed else 'not yet'}"
        return "\n".join([head, *self._text()])

    def _text(self) -> list[str]:
        rows = [f"  {line}" for line in self.lines]
        rows += [f"  {self.why}"] if self.why else []
        return rows + ([f"  Hint: {self.hint}"] if self.hint else [])

    def _repr_html_(self) -> str:
        head = f"<b>{'✓ passed' if self.passed else '✗ not yet'}</b> {html.escape(self.key)}"
        return "<br>".join([head, *map(html.escape, self._text())])


class Challenge:
    """One challenge: read it, `.check(answer)` it, ask for the `.solution()` after a try."""

    _baselines: dict[str, list[Any]] = {}  # per task: what was measured in this session

    def __init__(self, task: Task):
        self.task, self.tries = task, 0

    def check(self, answer: Any) -> Verdict:
        """Run the answer apart from the kernel and judge it. `...` stands for no answer yet."""
        if answer is None or answer is ...:
            return self._verdict(False, why="No answer yet.", count=False)
        try:
            if why := self.task.refuse(answer) or self._missing():
                return self._verdict(False, why=why)
            return self._judge(answer)
        except (Unsendable, _Failed, OSError, RuntimeError, LookupError) as problem:
            return self._verdict(False, why=str(problem), count="DeviceBusy" not in str(problem))

    def solution(self) -> Any:
        """Return a solution that passes; after a first try only."""
        if not self.tries:
            return "Try it first: check an answer of your own, then ask again."
        return tasks.solution_of(self.task)

    def _missing(self) -> str | None:
        """What this machine lacks for it; None where nothing."""
        return self.task.needs(machine()) if self.task.needs else None

    def _judge(self, answer: Any) -> Verdict:
        measured, baselines = [self._run(answer)], self._baseline(1)
        values = self._values(measured, baselines)
        if any(goal.near(value) for goal, value in zip(self.task.goals, values, strict=True)):
            measured += [self._run(answer) for _ in range(REPEATS - 1)]
            values = self._values(measured, self._baseline(REPEATS))
        if others := [why for why in map(self._other_work, measured) if why]:
            return self._verdict(False, why=others[0])
        lines = [_line(g, v) for g, v in zip(self.task.goals, values, strict=True)]
        passed = all(g.met(v) for g, v in zip(self.task.goals, values, strict=True))
        return self._verdict(passed, lines)

    def _values(self, measured: list[Any], baselines: list[Any]) -> list[float | None]:
        """Per goal the median over the runs."""
        pairs = [(run, baselines[i % len(baselines)]) for i, run in enumerate(measured)]
        return [middle([goal.value(*pair) for pair in pairs]) for goal in self.task.goals]

    def _run(self, answer: Any) -> Any:
        if isinstance(self.task, KnobTask):
            run = launch(self.task.spec(answer)).wait()
        else:
            spec = Experiment("exercise", {"task": self.task.exercise})
            run = launch(spec, source=Attempt(answer)).wait()
        if run.outcome != "finished":
            raise _Failed(f"It did not finish. {run.error or run.outcome}")
        return run

    def _baseline(self, count: int) -> list[Any]:
        """The baseline's runs in this session, measured where there are too few."""
        if not isinstance(self.task, KnobTask):
            return [None]  # an exercise measures its own baseline, beside the answer
        if not self.task.compares:
            return [None]
        kept = self._baselines.setdefault(self.task.key, [])
        while len(kept) < count:
            kept.append(self._run(self.task.against or self.task.base))
        return kept

    def _other_work(self, run: Any) -> str | None:
        """Why the answer did something else than it was asked; None where it did not."""
        if isinstance(self.task, KnobTask):
            if self.task.same_losses and self.task.compares:
                pairs = zip(run.loss[:5], self._baseline(1)[0].loss[:5], strict=False)
                if any(abs(a - b) > self.task.tolerance * max(1.0, abs(b)) for a, b in pairs):
                    return "The losses are not those of the same work."
            return None
        found = [point for point in run if point.of == "refused"]
        return found[0].values.get("why") if found else None

    def _verdict(
        self, passed: bool, lines: Any = (), why: str | None = None, count: bool = True
    ) -> Verdict:
        hint = None
        if count:
            self.tries += 1
            score.keep("challenges", self.task.key, passed=passed, tries=self.tries)
            if not passed and self.task.hints:
                hint = self.task.hints[min(self.tries, len(self.task.hints)) - 1]
        return Verdict(self.task.key, passed, tuple(lines), why, hint)

    @property
    def start(self) -> Any:
        """What to begin from: a spec, or code as text; None where there is nothing."""
        if isinstance(self.task, KnobTask):
            return self.task.base
        return tasks.source_of(self.task.start) if self.task.start else None

    @property
    def rules(self) -> str:
        """What kind of answer is expected, and what it may change."""
        if not isinstance(self.task, KnobTask):
            return f"The answer is a {self.task.kind}."
        kind = "a Pipeline or a dict" if isinstance(self.start, Pipeline) else "a dict"
        return f"The answer is {kind} of changes; only {', '.join(self.task.free)} may change."

    def __repr__(self) -> str:
        lines = [f"Challenge {self.task.key}: {self.task.title}", self.task.text, self.rules]
        return "\n".join([*lines, *([f"\n{self.start}"] if self.start else [])])

    def _repr_html_(self) -> str:
        title = f"{html.escape(self.task.key)}: {html.escape(self.task.title)}"
        style = "white-space: pre-wrap"
        code = f"<pre style='{style}'>{html.escape(str(self.start))}</pre>" if self.start else ""
        text = f"{html.escape(self.task.text)}<br>{html.escape(self.rules)}"
        return f"<b>{title}</b><p>{text}</p>{code}"


class _Failed(Exception):
    """The answer could not be run to its end; the message says why."""


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, as "02-feed"; raises ValueError where there is none."""
    if key not in tasks.TASKS:
        raise ValueError(f"challenge {key!r}: there are {', '.join(tasks.TASKS)}.")
    return Challenge(tasks.TASKS[key])


def _line(goal: Goal, value: float | None) -> str:
    mark = "yes" if goal.met(value) else "no"
    shown = "not measured" if value is None else f"{value:.4g}"
    return f"{mark}: {goal.expected}; measured {shown}"
