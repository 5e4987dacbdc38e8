"""Several traces together: those of a job's ranks side by side, or one before and one after."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from labkit.analysis.thresholds import WORTH_NAMING
from labkit.analysis.trace_file import NotATrace, TraceError, TraceFile
from labkit.results.result import Result, Table

LISTED = 6  # kernels and operators that changed most
RANK_IN_NAME = re.compile(r"(?i)(?:rank|worker)[-_. ]?(\d{1,7})")


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The traces of a job: a Breakdown for each rank, in the order of their `rank`."""

    source: str
    ranks: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> Any:
        return self.ranks[index]

    def compare(self, after: Any) -> Any:
        """Refuse: one rank is compared with another."""
        raise TraceError(f"{self.source!r} holds several ranks: compare one of its .ranks.")

    collective_us = property(
        lambda self: {b.rank: b.busy.get("comm_busy", 0.0) * b.step_us for b in self.ranks},
        doc="µs of a step that each rank is in collectives, in which it also waits for others.",
    )

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        spent = self.collective_us
        late = min(spent, key=spent.get)
        waits = median([us for rank, us in spent.items() if rank != late] or [0.0]) - spent[late]
        return late if waits >= WORTH_NAMING["straggler"] * fmean(b.step_us for b in self) else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        spent, late = self.collective_us, self.straggler
        if late is None:
            return "no rank keeps the others waiting"
        own, others = spent.pop(late) / 1000, median(spent.values()) / 1000
        return (
            f"rank {late} is the straggler: it is in collectives for {own:,.1f} ms of a step, the "
            f"others, which wait for it, for {others:,.1f} ms (median)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        head = {"source": self.source, "straggler": self.straggler, "headline": self.headline}
        ranks = [each.to_dict() for each in self.ranks]
        return {**head, "ranks": ranks, "notes": list(self.notes)}

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        head = {"compute_busy": "compute", "comm_busy": "collectives", "exposed_comm": "exposed",
                "idle": "device idle", "dataloader_share": "DataLoader"}  # fmt: skip
        rows = []
        for b in self.ranks:
            shares = (f"{b.busy[key]:.1%}" if key in b.busy else None for key in head)
            rows.append((b.rank, f"{b.step_us / 1000:,.2f} ms", *shares))
        title = f"Traces {self.source}: {len(self)} ranks; {self.headline}"
        foot = [f"note: {note}" for note in self.notes]
        bold = [row for row, b in enumerate(self.ranks) if b.rank == self.straggler]
        return Table(rows, ("rank", "step", *head.values()), title, foot, (), bold)


def ranks_of(
    path: str | os.PathLike, files: Iterable[TraceFile], read: Callable[[TraceFile], Any]
) -> RankTraces:
    """Read the traces of a folder or archive; of several of one rank, the last by name."""
    found, notes, ranks = [], [], {}
    for file in files:
        try:
            one = read(file)
        except NotATrace:
            notes.append(f"{os.path.basename(file.path)} is not a profiler trace: left out.")
            continue
        named = RANK_IN_NAME.findall(one.source)
        found.append(replace(one, rank=int(named[-1])) if one.rank is None and named else one)
    if not found:
        what, remedy = "holds no profiler trace", "give one .json or .json.gz for each rank"
        raise TraceFile(path).error(what, remedy)
    found.sort(key=lambda one: one.source)
    if any(one.rank is None for one in found):
        notes.append("Not every file says its rank: they are numbered in the order of their names.")
        found = [replace(one, rank=number) for number, one in enumerate(found)]
    for one in found:
        if earlier := ranks.get(one.rank):
            notes.append(f"Rank {one.rank} has several traces: left out {earlier.source}.")
        ranks[one.rank] = one
    name = os.path.basename(os.path.abspath(os.fsdecode(path)))
    return RankTraces(name, tuple(ranks[rank] for rank in sorted(ranks)), tuple(notes))


@dataclass(frozen=True, repr=False)
class TraceComparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Any
    after: Any

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        a, b = self.before, self.after
        times = f"{a.step_us / 1000:,.1f} -> {b.step_us / 1000:,.1f} ms"
        busy = f"{a.utilization:.1%} -> {b.utilization:.1%} busy"
        return f"step {times} ({b.step_us / a.step_us - 1:+.0%}), {busy}"

    def to_dict(self) -> dict[str, Any]:
        """Return µs and shares of a step: of all classes, and of what changed most."""
        a, b = self.before, self.after
        found: dict[str, Any] = {"before": a.source, "after": b.source}
        for key in ("step_us", "utilization", "steps"):
            found |= {f"before_{key}": getattr(a, key), f"after_{key}": getattr(b, key)}
        classes = [{name: getattr(x, f"{name}_us") for name in x.shares} for x in (a, b)]
        for what in ("classes", "kernels", "operators"):
            old, new = classes if what == "classes" else [x.detail.get(what, {}) for x in (a, b)]
            rows = []
            for name in old | new:
                us = old.get(name, 0.0), new.get(name, 0.0)
                row = {"name": name, "before_us": us[0], "after_us": us[1]}
                row |= {"change_us": us[1] - us[0], "before_share": us[0] / a.step_us}
                rows.append(row | {"after_share": us[1] / b.step_us})
            if what != "classes":
                rows = sorted(rows, key=lambda row: -abs(row["change_us"]))[:LISTED]
            found[what] = rows
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        found, rows = self.to_dict(), []
        for what in ("classes", "kernels", "operators"):
            for row in found[what]:
                name = row["name"] if what == "classes" else f"{what[:-1]} {row['name'][:60]}"
                ms = [f"{row[f'{key}_us'] / 1000:,.2f}" for key in ("before", "after")]
                shares = (f"{row[f'{key}_share']:.1%}" for key in ("before", "after"))
                rows.append((name, *ms, f"{row['change_us'] / 1000:+,.2f}", *shares))
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)
