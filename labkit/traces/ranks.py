"""What `lk.trace` returns of the ranks of a job: a Breakdown for each, and who is late."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING

from labkit.results.result import Result, Table
from labkit.traces.breakdown import Breakdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Share of a step that the others wait for one rank. Two healthy gloo ranks on two cores wait for
# each other 7 to 9 % of the time
WORTH_NAMING_A_STRAGGLER = 0.13
RANK_LANES = ("CPU operators", "kernels", "collectives")  # in the picture of two ranks
RANK_COLUMNS = {  # of the table of ranks: shares in `Breakdown.busy`
    "compute_busy": "compute",
    "comm_busy": "collectives",
    "exposed_comm": "exposed",
    "idle": "device idle",
    "dataloader_share": "DataLoader",
}


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The traces of a job: a Breakdown for each rank, in the order of their `rank`."""

    source: str
    ranks: tuple[Breakdown, ...]
    notes: list[str] = field(default_factory=list)

    def _collectives(self) -> tuple[int | None, float, float]:
        """Return who is in collectives for least time, for how long, and the others' median.

        In µs of a step; there a rank also waits for the others.
        """
        spent = {each.rank: each.busy.get("comm_busy", 0.0) * each.step_us for each in self.ranks}
        late = min(spent, key=spent.__getitem__)
        own = spent.pop(late)
        return late, own, median(spent.values() or [own])

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        late, own, others = self._collectives()
        enough = WORTH_NAMING_A_STRAGGLER * fmean(each.step_us for each in self.ranks)
        return late if others - own >= enough else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        if self.straggler is None:
            return "no rank keeps the others waiting"
        late, own, others = self._collectives()
        return (
            f"rank {late} is the straggler: it is in collectives for {own / 1000:,.1f} ms of a "
            f"step, the others, which wait for it, for {others / 1000:,.1f} ms (median)"
        )

    def timeline(self) -> Figure:
        """Draw when the first rank and the straggler computed and were in collectives."""
        from labkit.view.run_figure import draw_timeline

        shown = [each for each in self.ranks if each.rank in (self.ranks[0].rank, self.straggler)]
        began_ns = min(each.began_ns for each in shown)
        lanes = {
            f"rank {each.rank}: {kind}": each.lanes[kind] + (each.began_ns - began_ns) / 1e6
            for each in shown
            for kind in RANK_LANES
            if kind in each.lanes
        }
        return draw_timeline(self.source, lanes)

    def to_dict(self) -> dict[str, object]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        return {
            "source": self.source,
            "straggler": self.straggler,
            "headline": self.headline,
            "ranks": [each.to_dict() for each in self.ranks],
            "notes": self.notes,
        }

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        rows = [
            (
                each.rank,
                f"{each.step_us / 1000:,.2f} ms",
                *(f"{each.busy.get(share, 0.0):.1%}" for share in RANK_COLUMNS),
            )
            for each in self.ranks
        ]
        late = self.straggler
        return Table(
            rows,
            head=("rank", "step", *RANK_COLUMNS.values()),
            title=f"Traces {self.source}: {len(self.ranks)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[row for row, each in enumerate(self.ranks) if each.rank == late],
        )
