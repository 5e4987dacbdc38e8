"""Challenges that are answered with changes to a spec, and judged by a run of the changed spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from labkit.api import Run, launch
from labkit.course.challenge import Challenge, Measured, finished
from labkit.course.goals import Goal
from labkit.course.slow_script import SlowScript
from labkit.spec import Pipeline

# Measures an answer's run, and where it has to the run of what was given, which it starts
Measure = Callable[[Run, Callable[[], Run]], float | None]


def faster(times: float) -> dict[Goal, Measure]:
    """Return the goal of a multiple of the baseline's samples/s."""
    return {Goal("samples/s over the baseline's", at_least=times, close=0.1): speedup}


def speedup(run: Run, baseline: Callable[[], Run]) -> float | None:
    """Return how many times the baseline's samples/s a run has; None where one is not known."""
    before = baseline().throughput
    return run.throughput / before if run.throughput and before else None


@dataclass(frozen=True, repr=False)
class KnobChallenge(Challenge):
    """Answered with `start` in which knobs of `free` are changed: a spec, or a dict of changes."""

    goals: Mapping[Goal, Measure]
    start: Pipeline | SlowScript
    free: tuple[str, ...]

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

    def attempt(self, answer: object) -> Measured:
        """Run the answer, and once in a session the baseline."""
        run = finished(launch(self.spec(answer)))
        return {goal: of(run, lambda: baseline_run(self.start)) for goal, of in self.goals.items()}


@cache
def baseline_run(base: Pipeline | SlowScript) -> Run:
    """Return this session's run of the given spec."""
    return finished(launch(base))
