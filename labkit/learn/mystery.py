"""A run from the fault set whose spec is hidden: look, name the bottleneck, then see."""

from __future__ import annotations

import functools
import random

from labkit.lab import faultset
from labkit.lab.run import Run

# Faults that take at least a fifth of the time, so that a figure can show them
SEVERITY = 4
NAMES = ("input", "transfer", "launch", "memory_bandwidth", "precision", "compute")

faster_format = functools.cache(faultset.faster_format)  # one run of a few seconds per session


class Mystery:
    """One hidden run: look at `.run`, `.plot()` and `.xray`, then `.answer("input")`."""

    def __init__(self, case: faultset.Case, run: Run):
        self._case, self.run = case, run
        self.run.alias = "a mystery run"
        self.tries = 0

    def plot(self):
        """Draw the run with its knobs left out, as a matplotlib Figure."""
        return self.run.plot()

    def answer(self, bottleneck: str) -> str:
        """Return whether `bottleneck` is what was planted; at the third try, also what it was.

        Raises ValueError for a word that is no bottleneck.
        """
        if bottleneck not in NAMES:
            raise ValueError(f"{bottleneck!r} is no bottleneck: choose one of {', '.join(NAMES)}.")
        self.tries += 1
        if bottleneck == self._case.fault.expected:
            return f"Right, at try {self.tries}. {self.reveal()}"
        if self.tries < 3:
            return f"Not {bottleneck}. Look again at what the device waits for."
        return f"Not {bottleneck} either. {self.reveal()}"

    def reveal(self) -> str:
        """Say what was planted, and show the run's knobs from now on."""
        self.run.alias = None
        fault, case = self._case.fault, self._case
        if fault in faultset.HEALTHY:
            return f"It was healthy ({fault.name}): the device itself is the limit."
        return f"Planted was {fault.name} ({case.amount:g} {fault.about}): {fault.expected}."

    def __repr__(self) -> str:
        return f"Mystery({self.run!r})"


def mystery(number: int = 0) -> Mystery:
    """Run mystery `number` of those that can show on this machine (about five seconds).

    The same number is the same mystery. Raises RuntimeError where its run fails.
    """
    precision, machine = faster_format()
    choice = random.Random(number)
    possible = [
        fault
        for fault in (*faultset.FAULTS, *faultset.HEALTHY)
        if faultset.cannot_show(fault, machine.kind, precision) is None
    ]
    case = faultset.Case(choice.choice(possible), SEVERITY, seed=number)
    run = case.start(precision).wait()
    if run.outcome != "finished":
        raise RuntimeError(f"Mystery {number} did not finish: {run.error or run.outcome}")
    return Mystery(case, run)
