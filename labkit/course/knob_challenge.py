"""Challenges that are answered with changes to a spec, and judged by a run of the changed spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from labkit.course.challenge import Challenge, Measured, finished
from labkit.course.goals import Goal
from labkit.course.slow_script import SlowScript
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.spec import Pipeline

Measure = Callable[[Run, "Run | None"], "float | None"]  # of an answer's run and the baseline's


def faster(times: float) -> Goal:
    """Return the goal of a multiple of the baseline's samples/s; see `speedup`."""
    return Goal("samples/s over the baseline's", at_least=times, close=0.1, needs_baseline=True)


def speedup(run: Run, baseline: Run | None) -> float | None:
    """Return how many times the baseline's samples/s a run has; None where one is not known."""
    before = baseline.throughput if baseline else None
    return run.throughput / before if run.throughput and before else None


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

    def attempt(self, answer: object, number: int) -> Measured:
        """Run the answer, and once in a session the `number`th baseline."""
        run = finished(launch(self.spec(answer)))
        compares = any(goal.needs_baseline for goal in self.goals)
        baseline = baseline_run(self.start, number) if compares else None
        return {goal: measure(run, baseline) for goal, measure in self.goals.items()}


@cache
def baseline_run(base: Pipeline | SlowScript, _number: int) -> Run:
    """Return the run of the given spec that has this number in this session."""
    return finished(launch(base))
