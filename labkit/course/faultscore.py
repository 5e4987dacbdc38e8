"""Score the diagnosis: run the fault set, diagnose every run, count what was right.

A run counts as right where the first-ranked bottleneck is the planted one. `unsure` is not right.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.analysis.diagnosis import SHARED, Diagnosis, diagnose
from labkit.course import faultset
from labkit.course.faultset import NAMES
from labkit.results.result import Result
from labkit.results.table import Table

HALVES = {"scoring": faultset.SCORING, "calibration": faultset.CALIBRATION}


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
        """True if the first-ranked bottleneck is the planted one."""
        return self.named == self.expected

    def __str__(self) -> str:
        what = f"{self.fault}, severity {self.severity}, seed {self.seed}"
        return f"{what}: planted {self.expected}, named {self.named}"


@dataclass(frozen=True, repr=False)
class FaultScore(Result):
    """The confusion matrix of one kind of device, on named hardware."""

    scored: tuple[Scored, ...]
    skipped: dict[str, str]  # faults that cannot show here, and why
    machine: str  # the device's name
    kind: str  # "cpu" or "gpu"
    half: str  # "scoring" or "calibration"
    repeated: int = 0  # runs measured again, once, as other programs had used the device

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
        """Healthy runs that were called sick; `unsure` does not count as a call."""
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
        count = Counter((s.expected, s.named) for s in self.scored)
        return {p: {name: count[p, name] for name in (*NAMES, "unsure")} for p in NAMES}

    def plot(self) -> Any:
        """Draw the matrix as a matplotlib Figure."""
        return draw(self)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        names = ("n", "accuracy", "false_alarms", "unsure", "matrix", "machine", "kind", "half",
                 "repeated", "skipped")  # fmt: skip
        wrong = [asdict(s) for s in self.scored if not s.right]
        return {**{name: getattr(self, name) for name in names}, "wrong": wrong}

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

    def table(self) -> Table:
        """The matrix: planted, then one column for each name."""
        wrong = [f"  {s}" for s in self.scored if not s.right]
        return Table(
            [(planted, *(n or "" for n in row.values())) for planted, row in self.matrix.items()],
            ("planted", *NAMES, "unsure"),
            title=self.headline,
            foot=(*wrong, *(f"  not run: {name}: {why}" for name, why in self.skipped.items())),
            left=(),
        )


def run_set(
    half: str = "scoring",
    *,
    seeds: int = 5,
    only: Iterable[str] | None = None,
    keep: str | os.PathLike | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> FaultScore:
    """Run a half of the fault set on this machine, diagnose every run, return the score.

    Args:
        half: "scoring", or "calibration" (the half that the thresholds were set on).
        seeds: How many of the half's five seeds to run; each runs every fault once.
        only: Names of faults; all that can show here where it is left out.
        keep: A file of results, one JSON object a line: cases that are in it are not run again.
        progress: Called as (done, total, case) before each run.

    Raises:
        ValueError: An unknown half or fault.
        RuntimeError: A run of the set failed.
    """
    if half not in HALVES:
        raise ValueError(f"Unknown half {half!r}; available: {', '.join(HALVES)}.")
    wanted = None if only is None else {faultset.named(name).name for name in only}
    if progress:
        progress(0, 1, "measuring which number format is faster here")
    here = faultset.base_here()
    machine, done = here.machine, _kept(keep)
    surroundings = machine.kind, here.base["precision"], machine.shm_gib
    skipped, todo, scored, repeated = {}, [], [], 0
    for case in here.cases(HALVES[half], seeds):
        if wanted is None or case.fault.name in wanted:
            if why := faultset.cannot_show(case.fault, *surroundings):
                skipped[case.fault.name] = why
            else:
                todo.append(case)
    for number, case in enumerate(todo):
        if progress:
            progress(number, len(todo), str(case))
        result = done.get((case.fault.name, case.severity, case.seed))
        if result is None:
            found = _diagnosed(case)
            if found.findings[0].cause == SHARED:  # others used the device: once more
                found, repeated = _diagnosed(case), repeated + 1
            result = Scored(
                case.fault.name, case.severity, case.seed, case.fault.expected, found.bottleneck,
                round(found.confidence, 3), round(found.findings[0].lost_share, 4),
            )  # fmt: skip
            if keep is not None:
                with open(keep, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        scored.append(result)
    return FaultScore(tuple(scored), skipped, machine.name, machine.kind, half, repeated)


def _diagnosed(case: faultset.Case) -> Diagnosis:
    run = case.start().wait()
    if run.outcome != "finished":
        raise RuntimeError(f"{case} did not finish: {run.error or run.outcome}")
    return diagnose(run)


def _kept(keep: str | os.PathLike | None) -> dict[tuple[str, int, int], Scored]:
    """Read the results of an interrupted run of the set; a torn last line is ignored."""
    found = {}
    if keep is not None and Path(keep).exists():
        for line in Path(keep).read_text(encoding="utf-8").splitlines():
            try:
                scored = Scored(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[scored.fault, scored.severity, scored.seed] = scored
    return found


def draw(score: FaultScore) -> Any:
    """Draw a `FaultScore`: planted down, named across; right ones green, wrong ones red."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    ends = ("#D55E00", "#009E73")
    scales = [LinearSegmentedColormap.from_list("share", ["#FFFFFF", end]) for end in ends]
    planted, named = list(score.matrix), [*NAMES, "unsure"]
    counts = np.array([[score.matrix[p][n] for n in named] for p in planted])
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = [
        [scales[p == n](share[i, j]) for j, n in enumerate(named)] for i, p in enumerate(planted)
    ]
    figure = Figure(figsize=(8.2, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.array(colours), aspect="auto")
    for i, j in zip(*np.nonzero(counts), strict=True):
        ink = "white" if share[i, j] > 0.6 else "black"
        axes.text(j, i, counts[i, j], ha="center", va="center", fontsize=11, color=ink)
    words = {"memory_bandwidth": "memory\nbandwidth", "compute": "compute\n(healthy)"}
    for axis, names in ((axes.xaxis, named), (axes.yaxis, planted)):
        axis.set_ticks(range(len(names)), [words.get(n, n) for n in names], fontsize=9)
        axis.set_ticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#CCCCCC", linewidth=0.8)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("named first by the diagnosis")
    axes.set_ylabel("planted")
    right = "no runs" if score.accuracy is None else f"{score.accuracy:.1%} right"
    title = (
        f"{score.n} runs of the {score.half} half: {right}, {score.false_alarms} healthy called "
        f"sick\n{score.machine} ({score.kind.upper()})"
    )
    axes.set_title(title, loc="left", fontsize=11).set_parse_math(False)
    return figure
