"""How often the diagnosis is right: the fault set, run, diagnosed and counted.

A run counts as right where the first-ranked bottleneck is the planted one. `unsure` is not right.
"""

from __future__ import annotations

import html
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.analysis.diagnosis import Diagnosis, diagnose
from labkit.analysis.doubts import SHARED
from labkit.course import faultset
from labkit.course.faultset import CALIBRATION, SCORING, Case

HALVES = {"scoring": SCORING, "calibration": CALIBRATION}
NAMES = ("input", "transfer", "launch", "memory_bandwidth", "precision", "compute")


@dataclass(frozen=True)
class Scored:
    """One run of the set: what was planted, and what the diagnosis said first."""

    fault: str
    severity: int
    seed: int
    expected: str
    named: str
    confidence: float
    lost_share: float

    @property
    def right(self) -> bool:
        """Whether the first-ranked bottleneck is the planted one."""
        return self.named == self.expected


@dataclass(frozen=True)
class Score:
    """The confusion matrix of one kind of device, on named hardware.

    Attributes:
        scored: Every run.
        skipped: Faults that cannot show here, and why.
        machine: The device's name.
        kind: "cpu" or "gpu".
        half: "scoring" or "calibration".
        repeated: Runs that were measured again, once, as other programs had used the device.
    """

    scored: tuple[Scored, ...]
    skipped: dict[str, str]
    machine: str
    kind: str
    half: str
    repeated: int = 0

    @property
    def n(self) -> int:
        """Runs scored."""
        return len(self.scored)

    @property
    def accuracy(self) -> float | None:
        """Share of all runs (0 to 1) whose first-ranked bottleneck is right."""
        return sum(s.right for s in self.scored) / self.n if self.n else None

    @property
    def false_alarms(self) -> int:
        """Healthy runs that were called sick; `unsure` is no call."""
        return sum(
            s.expected == "compute" and s.named not in ("compute", "unsure") for s in self.scored
        )

    @property
    def unsure(self) -> float | None:
        """Share of all runs (0 to 1) without a verdict."""
        return sum(s.named == "unsure" for s in self.scored) / self.n if self.n else None

    @property
    def matrix(self) -> dict[str, dict[str, int]]:
        """Runs by what was planted, then by what was named."""
        rows = {}
        for planted in NAMES:
            named = Counter(s.named for s in self.scored if s.expected == planted)
            rows[planted] = {name: named[name] for name in (*NAMES, "unsure")}
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON types."""
        return {
            "n": self.n,
            "accuracy": self.accuracy,
            "false_alarms": self.false_alarms,
            "unsure": self.unsure,
            "matrix": self.matrix,
            "machine": self.machine,
            "kind": self.kind,
            "half": self.half,
            "repeated": self.repeated,
            "skipped": self.skipped,
            "wrong": [s.__dict__ for s in self.scored if not s.right],
        }

    def plot(self) -> Any:
        """Draw the confusion matrix; returns a matplotlib Figure."""
        from labkit.course import confusion_figure

        return confusion_figure.draw(self)

    @property
    def headline(self) -> str:
        """The score in one line."""
        if not self.n:
            return f"No run of the {self.half} half was scored on {self.machine}."
        return (
            f"{self.n} runs of the {self.half} half on {self.machine} ({self.kind.upper()}): "
            f"{self.accuracy:.1%} right, {self.false_alarms} healthy called sick, "
            f"{self.unsure:.1%} unsure"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The matrix as text: planted, then one column for each name."""
        head = ("planted", *NAMES, "unsure")
        body = [(name, *(str(c or "") for c in row.values())) for name, row in self.matrix.items()]
        return [head, *body]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        wrong = [
            f"  {s.fault}, severity {s.severity}, seed {s.seed}: planted {s.expected}, "
            f"named {s.named}"
            for s in self.scored
            if not s.right
        ]
        skipped = [f"  not run: {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join([self.headline, *lines, *wrong, *skipped])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        return f"<b>{html.escape(self.headline)}</b><table>{body}</table>"


def run_set(
    half: str = "scoring",
    *,
    seeds: int = 5,
    only: Iterable[str] | None = None,
    keep: str | os.PathLike | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Score:
    """Run a half of the fault set on this machine, diagnose every run, return the score.

    Args:
        half: "scoring", or "calibration" (the half that the thresholds were set on).
        seeds: How many of the half's five seeds to run; each runs every fault once.
        only: Names of faults; all that can show here where it is left out.
        keep: A file of results, one JSON object a line: cases that are in it are not run again.
        progress: Called as (done, total, case) before each run.

    Raises:
        ValueError: A half or a fault that does not exist.
        RuntimeError: A run of the set failed.
    """
    if half not in HALVES:
        raise ValueError(f"half={half!r}: there are {' and '.join(HALVES)}.")
    wanted = None if only is None else {faultset.named(name).name for name in only}
    if progress:
        progress(0, 1, "measuring which number format is faster here")
    here = faultset.base_here()
    done, machine = _kept(keep), here.machine
    skipped, todo = {}, []
    for case in here.cases(HALVES[half], seeds):
        if wanted is not None and case.fault.name not in wanted:
            continue
        why = faultset.cannot_show(
            case.fault, machine.kind, here.base["precision"], machine.shm_gib
        )
        if why:
            skipped[case.fault.name] = why
        else:
            todo.append(case)
    scored, repeated = [], 0
    for number, case in enumerate(todo):
        if progress:
            progress(number, len(todo), str(case))
        result = done.get((case.fault.name, case.severity, case.seed))
        if result is None:
            result, again = _score(case)
            repeated += again
            _keep(result, keep)
        scored.append(result)
    return Score(tuple(scored), skipped, machine.name, machine.kind, half, repeated)


def _score(case: Case) -> tuple[Scored, bool]:
    """Run and diagnose a case; once more where other programs used the device meanwhile."""
    found, again = _diagnosed(case), False
    if found.findings[0].cause == SHARED:
        found, again = _diagnosed(case), True
    scored = Scored(
        case.fault.name,
        case.severity,
        case.seed,
        case.fault.expected,
        found.bottleneck,
        round(found.confidence, 3),
        round(found.findings[0].lost_share, 4),
    )
    return scored, again


def _diagnosed(case: Case) -> Diagnosis:
    run = case.start().wait()
    if run.outcome != "finished":
        raise RuntimeError(f"{case} did not finish: {run.error or run.outcome}")
    return diagnose(run)


def _keep(scored: Scored, keep: str | os.PathLike | None) -> None:
    if keep is not None:
        with open(keep, "a", encoding="utf-8") as file:
            file.write(json.dumps(scored.__dict__) + "\n")


def _kept(keep: str | os.PathLike | None) -> dict[tuple[str, int, int], Scored]:
    """Read the results of an interrupted run of the set; a torn last line is ignored."""
    if keep is None or not Path(keep).exists():
        return {}
    found = {}
    for line in Path(keep).read_text(encoding="utf-8").splitlines():
        try:
            scored = Scored(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[scored.fault, scored.severity, scored.seed] = scored
    return found
