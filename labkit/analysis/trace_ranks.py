"""Several traces together: those of a job's ranks side by side, and one before and one after."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from labkit.analysis.thresholds import WORTH_NAMING
from labkit.analysis.trace_file import NotATrace, TraceError, TraceFile, error
from labkit.results.result import Result, Table

TOP = 6  # changes listed of kernels, and of operators
RANK_IN_NAME = re.compile(r"(?i)(?:rank|worker)[-_. ]?(\d{1,7})")


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The Breakdown of every rank of a job, by rank; a tuple of them in `ranks`."""

    source: str
    ranks: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ranks)

    def __getitem__(self, index: int) -> Any:
        return self.ranks[index]

    @property
    def collective_us(self) -> dict[int, float]:
        """Return µs of a step in collectives by rank: their work, and waiting for other ranks."""
        return {b.rank: b.busy["comm_busy"] * b.step_us for b in self.ranks if b.busy}

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for: it waits least in collectives; None without one."""
        spent = sorted((us, rank) for rank, us in self.collective_us.items())
        if len(spent) < 2:
            return None
        (least, rank), *rest = spent
        waits = median(us for us, _ in rest) - least
        late = waits >= WORTH_NAMING["straggler"] * fmean(b.step_us for b in self.ranks)
        return rank if late else None

    def to_dict(self) -> dict[str, Any]:
        """Return the ranks' dictionaries in a list, and the straggler."""
        return {
            "source": self.source,
            "straggler": self.straggler,
            "ranks": [each.to_dict() for each in self.ranks],
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return a row for each rank, shares of its steps; the straggler's stands out."""
        head = ("rank", "step", "compute", "collectives", "exposed", "device idle", "input")
        rows = [
            (b.rank, f"{b.step_us / 1000:,.2f} ms",
             *(f"{b.busy[key]:.1%}" if b.busy else None for key in
               ("compute_busy", "comm_busy", "exposed_comm", "idle")),
             f"{b.shares['dataloader']:.1%}")
            for b in self.ranks
        ]  # fmt: skip
        return Table(
            rows,
            head,
            title=f"Traces {self.source}: {len(self)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[i for i, b in enumerate(self.ranks) if b.rank == self.straggler is not None],
        )

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        if self.straggler is None:
            return "no rank is waited for much longer than the others"
        own, *others = (
            us / 1000
            for _, us in sorted(
                self.collective_us.items(), key=lambda item: item[0] != self.straggler
            )
        )
        return (
            f"rank {self.straggler} is the straggler: {own:,.1f} ms of a step in collectives, "
            f"where the others wait {min(others):,.1f} to {max(others):,.1f} ms"
        )


def ranks_of(
    path: str | os.PathLike, files: Iterable[TraceFile], read: Callable[[TraceFile], Any]
) -> RankTraces:
    """Read the traces of a folder or archive; of several of one rank, the last by name."""
    source, found, notes, last = os.fsdecode(path), [], [], {}
    for file in files:
        try:
            one = read(file)
        except NotATrace:
            notes.append(f"{os.path.basename(file.path)} is not a profiler trace: left out.")
            continue
        named = RANK_IN_NAME.findall(one.source)
        rank = one.rank if one.rank is not None else int(named[-1]) if named else None
        found.append(replace(one, rank=rank))
    if not found:
        remedy = "give a folder or archive with one .json or .json.gz per rank"
        raise error(source, "holds no profiler trace", remedy)
    found.sort(key=lambda one: one.source)
    if any(one.rank is None for one in found):
        notes.append("No rank in some of the files: ranks are numbered by file name.")
        found = [replace(one, rank=number) for number, one in enumerate(found)]
    for one in found:
        if one.rank in last:
            notes.append(f"Rank {one.rank} has several traces: {last[one.rank].source} left out.")
        last[one.rank] = one
    ranks = tuple(last[rank] for rank in sorted(last))
    return RankTraces(os.path.basename(source.rstrip("/")) or source, ranks, tuple(notes))


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What changed from one trace to another, in µs of an average step."""

    before: Any
    after: Any

    def changes(self, what: str) -> dict[str, tuple[float, float]]:
        """Return µs (before, after) by name of "class", or of "kernel" or "operator" by change."""
        if what == "class":
            return {name: tuple(share * each.step_us for each, share in (
                (self.before, self.before.shares[name]), (self.after, self.after.shares[name])))
                for name in self.before.shares}  # fmt: skip
        old, new = self.before.detail.get(what, {}), self.after.detail.get(what, {})
        both = {name: (old.get(name, 0.0), new.get(name, 0.0)) for name in old | new}
        return dict(sorted(both.items(), key=lambda item: -abs(item[1][1] - item[1][0])))

    @property
    def headline(self) -> str:
        """Say how the step and its busy time changed."""
        a, b = self.before, self.after
        return (
            f"a step takes {b.step_us / 1000:,.1f} ms instead of {a.step_us / 1000:,.1f} "
            f"({b.step_us / a.step_us - 1:+.0%}), {b.utilization:.1%} busy instead of "
            f"{a.utilization:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as JSON types: µs of a step, for classes also shares of it."""
        rows = {
            what: [
                {"name": name, "before_us": old, "after_us": new, "change_us": new - old}
                for name, (old, new) in self.changes(what).items()
            ]
            for what in ("class", "kernel", "operator")
        }
        for row in rows["class"]:
            row["before_share"] = self.before.shares[row["name"]]
            row["after_share"] = self.after.shares[row["name"]]
        sides = {"before": self.before, "after": self.after}
        return {
            **{name: each.source for name, each in sides.items()},
            **{f"{name}_step_us": each.step_us for name, each in sides.items()},
            **{f"{name}_utilization": each.utilization for name, each in sides.items()},
            "classes": rows["class"],
            "kernels": rows["kernel"][:TOP],
            "operators": rows["operator"][:TOP],
        }

    def table(self) -> Table:
        """Return the classes, then the largest changes of kernels and operators."""
        found, rows, bold = self.to_dict(), [], []
        for what in ("classes", "kernels", "operators"):
            for row in found[what]:
                if not (row["before_us"] or row["after_us"]):
                    continue
                shares = (
                    f"{row[key]:.1%}" for key in ("before_share", "after_share") if key in row
                )
                times = (f"{row[key] / 1000:,.2f}" for key in ("before_us", "after_us"))
                name = f"{what[:-1]} {row['name'][:60]}" if what != "classes" else row["name"]
                rows.append((name, *times, f"{row['change_us'] / 1000:+,.2f}", *shares))
        head = ("ms of a step", "before", "after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        return Table(rows, head, title=title)
