"""What a challenge asks: a task, its goals as relations, its hints, and how it is tried out.

A goal compares what the attempt measures with a baseline measured in the same session, never with
an absolute time. A measurement close to its mark is repeated and the median counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from labkit.course.sealed import Sealed
from labkit.results.slow_script import SlowScript
from labkit.spec import KNOBS, Distributed, Pipeline


@dataclass(frozen=True)
class Goal:
    """One relation: a number of the attempt, over the same of the baseline or on its own."""

    what: str  # in words, as the reader sees it: "samples/s over the baseline's"
    value: Callable[[Any, Any], float | None]  # (attempt, baseline) -> the number
    at_least: float | None = None
    at_most: float | None = None
    close: float | None = 0.1  # measured again this near to the mark, as a share; None: exact

    def met(self, value: float | None) -> bool:
        """Whether `value` satisfies the relation; a number that is missing does not."""
        if value is None:
            return False
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= value <= high

    def near(self, value: float | None) -> bool:
        """Whether noise could have decided."""
        if value is None or self.close is None:
            return False
        marks = [mark for mark in (self.at_least, self.at_most) if mark is not None]
        return any(abs(value - m) <= self.close * abs(m) for m in marks)

    @property
    def expected(self) -> str:
        """The relation in words."""
        parts = []
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.what}: {self.at_least:g}"
        if self.at_least is not None:
            parts.append(f"at least {self.at_least:g}")
        if self.at_most is not None:
            parts.append(f"at most {self.at_most:g}")
        return f"{self.what}: {' and '.join(parts)}"


def ratio(name: str) -> Callable[[Any, Any], float | None]:
    """A goal's value: the attempt's attribute over the baseline's."""

    def value(attempt: Any, baseline: Any) -> float | None:
        mine, theirs = getattr(attempt, name), getattr(baseline, name)
        return mine / theirs if mine is not None and theirs else None

    return value


def own(name: str) -> Callable[[Any, Any], float | None]:
    """A goal's value: the attempt's attribute as it is."""
    return lambda attempt, _baseline: getattr(attempt, name)


def counted(name: str) -> Callable[[Any, Any], float | None]:
    """A goal's value: what an exercise wrote under `name`."""

    def value(measured: Any, _baseline: Any) -> float | None:
        found = [point.values[name] for point in measured if name in point.values]
        return found[-1] if found else None

    return value


def exactly(what: str, value: Callable, **marks: float) -> Goal:
    """Return a goal about a number that has no noise."""
    return Goal(what, value, close=None, **marks)


@dataclass(frozen=True)
class Task:
    """One challenge. `KnobTask` is answered with a spec, `CodeTask` with a function or class.

    `wrong` holds plausible answers that must fail, at least one of them a cheat; the tests try
    them, and the solution, on every change.
    """

    key: str  # "02-feed": notebook and name
    title: str
    text: str  # what to do, and what may be changed
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    solution: Any
    wrong: dict[str, Any] = field(default_factory=dict)
    needs: Callable[[Any], str | None] | None = None  # (machine) -> why it cannot be done here


Spec = Pipeline | SlowScript | Distributed


@dataclass(frozen=True)
class KnobTask(Task):
    """Answered with `base` with the knobs in `free` changed: a Pipeline, or a dict of changes.

    `against` is what the goals compare with, where it is not `base` itself.
    """

    base: Spec = field(default_factory=Pipeline)
    free: tuple[str, ...] = ()
    same_losses: bool = True  # whether the allowed knobs leave the first losses as they are
    tolerance: float = 1e-3  # of the losses: 16-bit formats round
    against: Spec | None = None
    compares: bool = True  # whether a goal looks at the baseline at all

    def spec(self, attempt: Any) -> Spec:
        """Return what is to be run; raises ValueError, saying why, for what is no answer."""
        if isinstance(attempt, type(self.base)):
            return attempt
        if not isinstance(attempt, dict):
            wanted = type(self.base).__name__ if isinstance(self.base, Pipeline) else "dict"
            raise ValueError(f"The answer is a {wanted}, this is {type(attempt).__name__}.")
        known = knobs_of(self.base)
        if unknown := [str(name) for name in attempt if name not in known]:
            raise ValueError(f"There is no {', '.join(unknown)} to change here.")
        if isinstance(self.base, Distributed):
            knobs = {name: value for name, value in attempt.items() if name in KNOBS}
            own = {name: value for name, value in attempt.items() if name not in KNOBS}
            return replace(self.base, pipeline=self.base.pipeline.but(**knobs), **own)
        return replace(self.base, **attempt)

    def refuse(self, attempt: Any) -> str | None:
        """Why this attempt is not run at all; None where it may be."""
        try:
            before, after = knobs_of(self.base), knobs_of(self.spec(attempt))
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            return str(error)
        if before == after:
            return "This is what you were given: change one of the allowed knobs."
        changed = [name for name in after if after[name] != before[name] and name not in self.free]
        if changed:
            return (
                f"Leave {', '.join(changed)} as {'it is' if len(changed) == 1 else 'they are'}: "
                f"only {', '.join(self.free)} may change, or it is not the same work."
            )
        return None


def knobs_of(spec: Spec) -> dict[str, Any]:
    """Return everything that a spec sets, by name."""
    if isinstance(spec, SlowScript):
        return {"fixes": spec.fixes, "steps": spec.steps}
    if isinstance(spec, Distributed):
        whole = spec.to_spec()
        return {**whole.pop("pipeline"), **whole}
    return spec.to_dict()


@dataclass(frozen=True)
class CodeTask(Task):
    """Answered with a function or a class, which is tried out in a process of its own.

    `exercise` names a module of `labkit.course.exercises`, whose measurements the goals read; there
    are the answers too, and `solution` and `wrong` name them: "module:name".
    """

    exercise: str = ""
    start: str = ""  # the code to begin from, "module:name" too
    kind: str = "function"  # or "class"

    def refuse(self, attempt: Any) -> str | None:
        """Why this attempt is not run at all; None where it may be."""
        if isinstance(attempt, Sealed):  # from a submission: only the bench opens it
            return attempt.refuse(self.kind)
        right = isinstance(attempt, type) if self.kind == "class" else callable(attempt)
        return None if right else f"The answer is a {self.kind}, this is {type(attempt).__name__}."


def middle(values: list[float | None]) -> float | None:
    """Return the median of what was measured; None where nothing was."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
