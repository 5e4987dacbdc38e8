"""What `lk.trace` returns of the ranks of a job: a Breakdown for each, and who is late."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, NoReturn

from labkit.results.result import Result, Table
from labkit.traces.breakdown import Breakdown, share_cells
from labkit.traces.file import TraceError

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
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> Breakdown:
        return self.ranks[index]

    def compare(self, after: object) -> NoReturn:
        """Refuse: one rank is compared with another."""
        raise TraceError(f"{self.source!r} holds several ranks: compare one of its .ranks.")

    @property
    def collective_us(self) -> dict[int | None, float]:
        """µs of a step that each rank is in collectives, in which it also waits for others."""
        return {each.rank: each.busy.get("comm_busy", 0.0) * each.step_us for each in self.ranks}

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        spent = self.collective_us
        late = min(spent, key=spent.__getitem__)
        own = spent.pop(late)
        enough = WORTH_NAMING_A_STRAGGLER * fmean(each.step_us for each in self.ranks)
        return late if median(spent.values() or [0.0]) - own >= enough else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        late = self.straggler
        if late is None:
            return "no rank keeps the others waiting"
        spent = self.collective_us
        own = spent.pop(late) / 1000
        return (
            f"rank {late} is the straggler: it is in collectives for {own:,.1f} ms of a step, the "
            f"others, which wait for it, for {median(spent.values()) / 1000:,.1f} ms (median)"
        )

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw when the first rank and the straggler computed and were in collectives.

        Args:
            start_ms: Where the picture begins, after the start of the first of the two.
            end_ms: Where it ends; all is drawn where it is not given.
        """
        from labkit.view.analysis_figures import draw_timeline

        shown = [each for each in self.ranks if each.rank in (self.ranks[0].rank, self.straggler)]
        began_ns = min(each.began_ns for each in shown)
        lanes = {}
        for each in shown:
            late_ms = (each.began_ns - began_ns) / 1e6
            for kind in RANK_LANES:
                if kind in each.lanes:
                    lanes[f"rank {each.rank}: {kind}"] = each.lanes[kind] + late_ms
        return draw_timeline(self.source, lanes, start_ms, end_ms)

    def plot(self) -> Figure:
        """Draw the timeline; the table has every rank's average step."""
        return self.timeline()

    def to_dict(self) -> dict[str, object]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        return {
            "source": self.source,
            "straggler": self.straggler,
            "headline": self.headline,
            "ranks": [each.to_dict() for each in self.ranks],
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        rows = []
        for each in self.ranks:
            cells = share_cells(each.busy, RANK_COLUMNS)
            rows.append((each.rank, f"{each.step_us / 1000:,.2f} ms", *cells))
        late = self.straggler
        return Table(
            rows,
            head=("rank", "step", *RANK_COLUMNS.values()),
            title=f"Traces {self.source}: {len(self)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[row for row, each in enumerate(self.ranks) if each.rank == late],
        )
