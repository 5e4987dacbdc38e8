"""Challenges that are answered with a function or a class, which a check tries out on the bench."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.course.challenge import Answer, Challenge, Measured, challenge, finished
from labkit.course.goals import Goal

if TYPE_CHECKING:
    from labkit.bench.stopwatch import Bench

Numbers = Mapping[str, float]  # what a check measured, by the `what` of its goals


class Refused(Exception):
    """The answer does other work than the task asks for; the message says what it does."""


@dataclass(frozen=True, repr=False)
class CodeChallenge(Challenge):
    """Answered with a function or a class, which `numbers_of` tries out on the bench."""

    goals: tuple[Goal, ...]
    numbers_of: Callable[[Answer], Numbers]

    @property
    def rules(self) -> str:
        """A function or a class, as the example is."""
        return f"The answer is a {'class' if isinstance(self.example, type) else 'function'}."

    def attempt(self, answer: object) -> Measured:
        """Try the answer out in a process of its own."""
        is_kind = isinstance(answer, type) or not isinstance(self.example, type)
        if not callable(answer) or not is_kind:
            raise ValueError(f"{self.rules} This is {type(answer).__name__}.")
        measured = self.on_the_bench(answer)
        if isinstance(measured, str):
            raise ValueError(measured)
        return {goal: measured.get(goal.what) for goal in self.goals}

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
