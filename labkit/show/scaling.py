"""The ladder of several ranks: speedup and efficiency against one process, row by row."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.show.ladder import NUMBER, TEXT
from labkit.show.run_header import machine_lines

HEAD = ("", "ranks", "samples/s", "speedup", "efficiency", "data", "others", "exchange", "")


@dataclass(frozen=True)
class ScalingRow:
    """One row: a run of ranks, against the one process that it is compared with."""

    name: str
    ranks: Ranks
    one: Run

    @property
    def efficiency(self) -> float | None:
        """Speedup per rank, 0 to 1; None without numbers."""
        return self.ranks.efficiency(self.one)

    @property
    def note(self) -> str:
        """What has to be said beside the numbers."""
        found = [
            self.ranks.mark or "",
            "" if self.ranks.outcome == "finished" else self.ranks.error or self.ranks.outcome,
            "noisy" if self.ranks.noisy or self.one.noisy else "",
        ]
        return "; ".join(filter(None, found))


class Scaling:
    """Runs of ranks against one process: `lk.Scaling(one).add("2 ranks", ranks)`, a table."""

    def __init__(self, one: Run):
        """`one` is the run that rows are compared with where they name no other."""
        if not isinstance(one, Run):
            raise ValueError(f"{type(one).__name__} is not a Run; give what lk.run gave.")
        self.one = one
        self._rows: dict[str, ScalingRow] = {}

    def add(self, name: str, ranks: Ranks, one: Run | None = None) -> Scaling:
        """Add a row and return the table; the same name again replaces that row.

        `one` is the one process of that row, where its pipeline is another than the table's.
        Raises ValueError where the two ran different pipelines, or one is still running.
        """
        if not isinstance(ranks, Ranks):
            raise ValueError(f"{name!r}: {type(ranks).__name__} is no distributed run.")
        if ranks.running:
            raise ValueError(f"{name!r} is still running: add it after wait() or stop().")
        row = ScalingRow(name, ranks, one or self.one)
        ranks.speedup(row.one)  # refuses another pipeline
        self._rows[name] = row
        return self

    @property
    def rows(self) -> list[ScalingRow]:
        """The rows in order."""
        return list(self._rows.values())

    def table(self) -> list[tuple[str, ...]]:
        """The cells under `HEAD`, the one process first, as text."""
        rate = "-" if self.one.throughput is None else f"{self.one.throughput:,.0f}"
        first = ("one process", "-", rate, "1.00x", "100%", "", "", "", "")
        return [first, *map(_cells, self.rows)]

    def plot(self) -> Any:
        """Draw samples/s as bars against the ideal, as a matplotlib Figure."""
        from labkit.show.scaling_figure import draw_scaling

        return draw_scaling(self)

    def __repr__(self) -> str:
        rows = [HEAD, *self.table()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self.foot])

    @property
    def foot(self) -> str:
        """The machines that the numbers are from."""
        runs = [self.one, *(row.ranks for row in self.rows)]
        return "; ".join(text for text, _ in machine_lines(runs))

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            styles = [TEXT if i in (0, len(cells) - 1) else NUMBER for i in range(len(cells))]
            return "".join(
                f"<{tag} style='{style}'>{html.escape(cell)}</{tag}>"
                for cell, style in zip(cells, styles, strict=True)
            )

        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self.table())
        return (
            f"<table><tr>{line(HEAD, 'th')}</tr>{body}</table>"
            f"<p><small>{html.escape(self.foot)}</small></p>"
        )


def _cells(row: ScalingRow) -> tuple[str, ...]:
    times, ranks = row.ranks.times, row.ranks
    if ranks.throughput is None or times is None:
        return (row.name, str(ranks.world_size), "-", "-", "-", "-", "-", "-", row.note)
    shares = (f"{np.mean(share):.0%}" for share in (times.wait, times.others, times.transfer))
    speedup = ranks.speedup(row.one)
    ratio = ("-", "-") if speedup is None else (f"{speedup:.2f}x", f"{row.efficiency:.0%}")
    return (
        row.name, str(ranks.world_size), f"{ranks.throughput:,.0f}", *ratio, *shares, row.note,
    )  # fmt: skip
