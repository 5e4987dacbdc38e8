"""A run from the fault set whose spec is hidden: look, name the bottleneck, then fix it.

On a machine without a GPU recorded GPU runs are among them. Nothing was planted in those: what
counts as right is labkit's own diagnosis of the record, and they are not run again.
"""

from __future__ import annotations

import functools
import os
import random
from dataclasses import asdict, dataclass
from typing import Any

from labkit.course import faultset, score
from labkit.course.faultset import NAMES
from labkit.knobs import check_names
from labkit.results.library import recorded as recordings
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.spec import KNOBS

SEVERITY = 4  # faults that take at least a fifth of the time, so that a figure can show them
TRIES = 3
EVERY = 3  # without a GPU, one mystery in so many is a recorded run of one

# Knobs that leave the work as it is; a mystery's own cure may need others
FREE = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "non_blocking",
    "prefetch_to_device", "precision", "compile", "channels_last", "fused_optimizer",
)  # fmt: skip

here = functools.cache(faultset.base_here)  # one run of a few seconds per session


@dataclass(frozen=True, repr=False)
class Fix(Result):
    """The gain of a reader's fix of a mystery; truthy if it is most of the cure's.

    Attributes:
        gain: Samples/s with the fix over those of the mystery; None where it was not measured.
        possible: The same of the right cure; None where there was nothing to cure.
        why: Why it was not measured.
    """

    gain: float | None = None
    possible: float | None = None
    why: str | None = None

    @property
    def share(self) -> float | None:
        """How much of what the cure gains the fix gained, 0 to 1; None where it gains nothing."""
        if self.gain is None or self.possible is None or self.possible <= 1:
            return None
        return min(1.0, max(0.0, (self.gain - 1) / (self.possible - 1)))

    def __bool__(self) -> bool:
        return (self.share or 0.0) >= 0.5

    def table(self) -> Table:
        """The fix beside the right cure, in samples/s over those of the mystery."""
        if self.gain is None:
            return Table((), title=f"Not measured: {self.why}")
        share = "" if self.share is None else f"{self.share:.0%} of the cure"
        rows = [("your fix", f"{self.gain:.2f}x", share)]
        if self.possible is None:
            return Table(rows, foot=("It was healthy: there was nothing to cure.",))
        return Table([*rows, ("the right cure", f"{self.possible:.2f}x", "")], left=(0, 2))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {**asdict(self), "share": self.share}


class Mystery:
    """One hidden run: look at `.run`, `.plot()` and `.xray`, `.answer("input")`, then `.fix()`."""

    def __init__(self, case: faultset.Case | None, run: Run, name: str = "", truth: str = ""):
        """Hide `run`, of `case`; of a record without a case, `truth` is its bottleneck."""
        self._case, self.run = case, run
        self._truth = truth or case.fault.expected
        self._name = name or f"mystery {case.seed}"
        self._cured: Run | None = None
        self.run.alias = "a mystery run"
        self.tries, self._over = 0, False

    def plot(self):
        """Draw the run with its knobs left out, as a matplotlib Figure."""
        return self.run.plot()

    def answer(self, bottleneck: str) -> str:
        """Return whether `bottleneck` is what was planted; at the third try, also what it was.

        The score keeps the tries until then. Raises ValueError for an unknown bottleneck.
        """
        if bottleneck not in NAMES:
            raise ValueError(f"Unknown bottleneck {bottleneck!r}; available: {', '.join(NAMES)}.")
        right = bottleneck == self._truth
        self.tries += 1
        if not self._over:
            score.keep("mysteries", self._name, tries=self.tries, right=right)
        if right:
            return f"Right, at try {self.tries}. {self.reveal()}"
        if self.tries < TRIES:
            return f"Not {bottleneck}. Look again at what the device waits for."
        return f"Not {bottleneck} either. {self.reveal()}"

    def reveal(self) -> str:
        """Say what was planted, and show the run's knobs from now on."""
        self.run.alias, self._over = None, True
        if self._case is None:
            return f"Nothing was planted in this record; labkit's diagnosis of it: {self._truth}."
        fault = self._case.fault
        if fault.expected == "compute":
            return f"It was healthy ({fault.name}): the device itself is the limit."
        size = f"{self._case.amount:g} {fault.about}"
        return f"Planted was {fault.name} ({size}): {fault.expected}."

    def fix(self, *, without: str | None = None, **changes: Any) -> Fix:
        """Run the mystery again with your fix, and say how much of the right cure it brings.

        Takes ten seconds or so, twice that the first time (the cure is measured too). The score
        keeps the best. What cannot be tried is said, not raised.

        Args:
            without: The name of what you take out of the code, as `reveal()` calls it: for faults
                that no knob can cure.
            **changes: Knobs of the pipeline, with their new values.
        """
        try:
            if why := self._not_tried(without, changes):
                return Fix(why=why)
            pipeline = self.run.asked.but(**changes, xray=False)
            fixed = faultset.finished(pipeline, None if without else self._case.planted)
            if self._cured is None and self._truth != "compute":
                self._cured = faultset.finished(self._case.cured.but(xray=False))
            rate = self.run.throughput
            fix = Fix(fixed.throughput / rate, self._cured and self._cured.throughput / rate)
        except (ValueError, RuntimeError, OSError) as error:
            return Fix(why=str(error))
        if fix.share is not None:
            kept = score.read()["mysteries"].get(self._name, {}).get("share")
            best = max(fix.share, kept if isinstance(kept, (int, float)) else 0.0)
            score.keep("mysteries", self._name, share=round(best, 3))
        return fix

    def _not_tried(self, without: str | None, changes: dict[str, Any]) -> str | None:
        """Return why a fix is not run; None if it is."""
        if not self._over:
            return "Name the bottleneck first: .answer(...)."
        if self._case is None:
            return "A recorded run cannot be run again on this machine: its cause alone counts."
        if not changes and without is None:
            return "Change a knob, or take something out: fix(num_workers=4)."
        check_names(changes, KNOBS)
        fault = self._case.fault
        if without is not None and (without != fault.name or not fault.plant):
            return f"There is no {without!r} in its code to take out."
        other = [name for name in changes if name not in FREE and name not in self._case.cure]
        if other:
            return f"Leave {', '.join(other)}: it would not be the same work."
        if changes.get("augment", 1) == 0:
            return "Leave one round of augmentation: it would not be the same work."
        return None

    def __repr__(self) -> str:
        return f"Mystery({self.run!r})"


def mystery(
    number: int = 0, *, recorded: bool | None = None, folder: str | os.PathLike | None = None
) -> Mystery:
    """Run mystery `number` of those that can show on this machine (about five seconds).

    The same number is the same mystery.

    Args:
        number: Which one.
        recorded: True: a recorded run of a GPU, which is only looked at. False: never. None: on a
            machine without a GPU one in three, where there are such records.
        folder: Where the records are, as for `lk.recorded`; None: those of the package.

    Raises:
        RuntimeError: Its run failed, or the record asked for does not exist.
    """
    in_turn = number % EVERY == EVERY - 1
    if recorded or (recorded is None and in_turn and here().machine.kind != "gpu"):
        if found := _recorded(number, folder):
            return found
        if recorded:
            where = "come with labkit" if folder is None else f"are in {folder}"
            raise RuntimeError(
                f"No recorded GPU runs with a clear bottleneck {where}. Make some on a machine "
                "with a GPU: python -m labkit record --out DIR; then lk.mystery(recorded=True, "
                "folder='DIR'). Or take lk.mystery(recorded=False), which runs here."
            )
    place = here()
    possible = [f for f in (*faultset.FAULTS, *faultset.HEALTHY) if not place.cannot_show(f)]
    fault = random.Random(number).choice(possible).on(place.machine.kind)
    case = faultset.Case(fault, SEVERITY, number, place.base)
    return Mystery(case, faultset.finished(case.pipeline, case.planted))


def _recorded(number: int, folder: str | os.PathLike | None) -> Mystery | None:
    """Return mystery `number` of the recorded GPU runs; None where none has a clear bottleneck."""
    listed = [r for r in recordings(folder=folder) if r.kind == "gpu" and not r.experiment]
    random.Random(number).shuffle(listed)
    for each in listed:
        try:
            run = each.load()
            found = run.diagnose()
        except ValueError:  # a broken record, or one too short to say anything
            continue
        if found.bottleneck in NAMES:  # not "unsure"
            return Mystery(None, run, f"recorded mystery {number}", found.bottleneck)
    return None
