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

    @property
    def collective_us(self) -> dict[int, float]:
        """µs of a step that each rank is in collectives, in which it also waits for others."""
        return {b.rank: b.busy.get("comm_busy", 0.0) * b.step_us for b in self.ranks}

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
        spent = {rank: us / 1000 for rank, us in self.collective_us.items()}
        if (late := self.straggler) is None:
            return "no rank keeps the others waiting"
        own, others = spent.pop(late), spent.values()
        return (
            f"rank {late} is the straggler: it is in collectives for {own:,.1f} ms of a step, the "
            f"others, which wait for it, for {min(others):,.1f} to {max(others):,.1f} ms"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        ranks = [each.to_dict() for each in self.ranks]
        head = {"source": self.source, "straggler": self.straggler, "headline": self.headline}
        return {**head, "ranks": ranks, "notes": list(self.notes)}

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        keys = ("compute_busy", "comm_busy", "exposed_comm", "idle", "dataloader_share")
        head = ("rank", "step", "compute", "collectives", "exposed", "device idle", "DataLoader")
        return Table(
            [
                (b.rank, f"{b.step_us / 1e3:,.2f} ms",
                 *(f"{b.busy[key]:.1%}" if key in b.busy else None for key in keys))
                for b in self.ranks
            ],
            head,
            title=f"Traces {self.source}: {len(self)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[row for row, b in enumerate(self.ranks) if b.rank == self.straggler],
        )  # fmt: skip


def ranks_of(
    path: str | os.PathLike, files: Iterable[TraceFile], read: Callable[[TraceFile], Any]
) -> RankTraces:
    """Read the traces of a folder or archive; of several of one rank, the last by name."""
    source, found, notes, ranks = os.fsdecode(path), [], [], {}
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
    name = os.path.basename(os.path.abspath(source))
    return RankTraces(name, tuple(ranks[rank] for rank in sorted(ranks)), tuple(notes))


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Any
    after: Any

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        a, b = self.before, self.after
        times = f"{a.step_us / 1e3:,.1f} -> {b.step_us / 1e3:,.1f} ms"
        return f"step {times} ({b.step_us / a.step_us - 1:+.0%}), {a.utilization:.1%} -> " + (
            f"{b.utilization:.1%} busy"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return µs of a step before and after: of all classes, and of what changed most."""
        a, b = self.before, self.after
        found: dict[str, Any] = {"before": a.source, "after": b.source}
        for key in ("step_us", "utilization", "steps"):
            found |= {f"before_{key}": getattr(a, key), f"after_{key}": getattr(b, key)}
        times = {"classes": [{c: getattr(x, f"{c}_us") for c in x.shares} for x in (a, b)]}
        for what in ("kernels", "operators"):
            times[what] = [x.detail.get(what, {}) for x in (a, b)]
        for what, (old, new) in times.items():
            rows = [
                {"name": name, "before_us": old.get(name, 0.0), "after_us": new.get(name, 0.0),
                 "change_us": new.get(name, 0.0) - old.get(name, 0.0)}
                for name in old | new
            ]  # fmt: skip
            if what == "classes":
                for row in rows:
                    row["before_share"] = a.shares[row["name"]]
                    row["after_share"] = b.shares[row["name"]]
                found[what] = rows
            else:
                found[what] = sorted(rows, key=lambda row: -abs(row["change_us"]))[:LISTED]
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        found, rows = self.to_dict(), []
        for what in ("classes", "kernels", "operators"):
            for row in found[what]:
                name = row["name"] if what == "classes" else f"{what[:-1]} {row['name'][:60]}"
                cells = [f"{row[key] / 1e3:,.2f}" for key in ("before_us", "after_us")]
                cells += [f"{row['change_us'] / 1e3:+,.2f}"]
                cells += [f"{row[k]:.1%}" for k in ("before_share", "after_share") if k in row]
                rows.append((name, *cells, *[""] * (6 - 1 - len(cells))))
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)
