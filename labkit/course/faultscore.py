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

from labkit.analysis.diagnosis import SHARED, diagnose
from labkit.course import faultset
from labkit.course.faultset import EVERYTHING, HALVES, NAMES, Case, finished
from labkit.results.result import Result, Table

NAMED = (*NAMES, "unsure")


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
    def wrong(self) -> list[Scored]:
        """The runs whose first-ranked bottleneck is not the planted one."""
        return [s for s in self.scored if s.named != s.expected]

    @property
    def accuracy(self) -> float | None:
        """Share of all runs (0 to 1) whose first-ranked bottleneck is right."""
        return (self.n - len(self.wrong)) / self.n if self.n else None

    @property
    def false_alarms(self) -> int:
        """Healthy runs that were called sick; `unsure` does not count as a call."""
        return sum(s.expected == "compute" and s.named != "unsure" for s in self.wrong)

    @property
    def unsure(self) -> float | None:
        """Share of all runs (0 to 1) without a verdict."""
        return sum(s.named == "unsure" for s in self.scored) / self.n if self.n else None

    @property
    def matrix(self) -> dict[str, dict[str, int]]:
        """Runs by what was planted, then by what was named."""
        count = Counter((s.expected, s.named) for s in self.scored)
        return {planted: {name: count[planted, name] for name in NAMED} for planted in NAMES}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        names = ("n", "accuracy", "false_alarms", "unsure", "matrix", "machine", "kind", "half",
                 "repeated", "skipped")  # fmt: skip
        return {name: getattr(self, name) for name in names} | {
            "wrong": list(map(asdict, self.wrong))
        }

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
        rows = [(planted, *(n or "" for n in row.values())) for planted, row in self.matrix.items()]
        foot = [*map(str, self.wrong), *(f"not run: {f}: {why}" for f, why in self.skipped.items())]
        return Table(rows, ("planted", *NAMED), self.headline, [f"  {line}" for line in foot], ())

    def plot(self) -> Any:
        """Draw the matrix, planted down, named across; right ones green, wrong ones red."""
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure

        counts = np.array([list(row.values()) for row in self.matrix.values()])
        share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        sign = 2 * np.eye(*counts.shape) - 1
        colours = LinearSegmentedColormap.from_list("share", ["#D55E00", "#FFFFFF", "#009E73"])
        figure = Figure(figsize=(8.2, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.imshow(share * sign, cmap=colours, vmin=-1, vmax=1, aspect="auto")
        for i, j in zip(*np.nonzero(counts), strict=True):
            ink = "white" if share[i, j] > 0.6 else "black"
            axes.text(j, i, counts[i, j], ha="center", va="center", fontsize=11, color=ink)
        for axis, names in ((axes.xaxis, NAMED), (axes.yaxis, NAMES)):
            axis.set_ticks(range(len(names)), [n.replace("_", "\n") for n in names], fontsize=9)
        axes.set_xlabel("named first by the diagnosis")
        axes.set_ylabel("planted")
        title = self.headline.replace(": ", "\n", 1)
        axes.set_title(title, loc="left", fontsize=11).set_parse_math(False)
        return figure


def run_set(
    half: str = "scoring",
    *,
    seeds: int = 5,
    only: Iterable[str] | None = None,
    keep: str | os.PathLike | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
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
    wanted = EVERYTHING if only is None else [faultset.named(name) for name in only]
    progress(0, 1, "measuring which number format is faster here")
    here, done = faultset.base_here(), _kept(keep)
    skipped = {f.name: why for f in wanted if (why := here.cannot_show(f))}
    todo, scored, repeated = [], [], 0
    severities = HALVES[half]["severities"]
    for turn, seed in enumerate(HALVES[half]["seeds"][:seeds]):  # severities take turns
        for fault in (each.on(here.machine.kind) for each in wanted if each.name not in skipped):
            todo.append(Case(fault, severities[turn % len(severities)], seed, here.base))
    for number, case in enumerate(todo):
        progress(number, len(todo), str(case))
        result = done.get((case.fault.name, case.severity, case.seed))
        if result is None:
            found = diagnose(finished(case.pipeline, case.planted))
            if found.findings[0].cause == SHARED:  # others used the device: once more
                found, repeated = diagnose(finished(case.pipeline, case.planted)), repeated + 1
            result = Scored(
                case.fault.name, case.severity, case.seed, case.fault.expected, found.bottleneck,
                round(found.confidence, 3), round(found.findings[0].lost_share, 4),
            )  # fmt: skip
            if keep is not None:
                with open(keep, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        scored.append(result)
    machine = here.machine
    return FaultScore(tuple(scored), skipped, machine.name, machine.kind, half, repeated)


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
