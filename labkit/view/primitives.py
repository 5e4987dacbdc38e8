"""What most figures are made of: stacked bars and lanes, each on an axes of a `page`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.view.style import INSIDE, drawable

LABELLED = 0.07  # of the longest row: a part at least so wide has its number inside
LANE_GAP = 0.3  # between two lanes, of a lane's usual height
SPARSE = 0.01  # of the picture: of what is active for less, short intervals are to be seen, too
EDGE_PT = 0.4  # so much is drawn around each of these


def stack(axes: Axes, rows: Mapping[str, Mapping[str, float]], parts: Mapping[str, str]) -> None:
    """Draw the parts of each row side by side, a wide one with its share; rows from top to bottom.

    Args:
        axes: Where to draw.
        rows: {name: {part: value}}.
        parts: {part: colour}, from left to right.
    """
    widths = pandas.DataFrame(rows).T[[*parts]]
    sums = widths.sum(axis=1)
    ends = widths.cumsum(axis=1)
    for part, colour in parts.items():
        own = widths[part]
        bars = axes.barh(range(len(own)), own, 0.62, ends[part] - own, color=colour)
        texts = [f"{share:.0%}" for share in own / sums]
        is_wide = own >= LABELLED * sums.max()
        axes.bar_label(bars, np.where(is_wide, texts, ""), label_type="center", color=INSIDE)
    name_rows(axes, list(rows))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, 2 ... of an axes, from top to bottom."""
    axes.set_yticks(range(len(names)), [drawable(name, 48) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def patches(named: Iterable[tuple[str, str]]) -> list[Patch]:
    """Return what a legend shows of some (name, colour)."""
    return [Patch(color=colour, label=name) for name, colour in named]


@dataclass
class Lane:
    """A row of `draw_lanes`: when something was active."""

    name: str
    spans: Sequence[tuple[str, np.ndarray]]  # colour, (n, 2) starts and ends
    height: float = 1.0


def draw_lanes(axes: Axes, lanes: Sequence[Lane], start: float, end: float) -> None:
    """Draw what of each lane lies between `start` and `end`, from bottom to top."""
    foot = 0.0
    middles = []
    for lane in lanes:
        for colour, spans in lane.spans:
            begin, stop = np.clip(spans[(spans[:, 1] > start) & (spans[:, 0] < end)], start, end).T
            widths = stop - begin
            edge = EDGE_PT if widths.sum() < SPARSE * (end - start) else 0.0
            drawn = list(zip(begin, widths, strict=True))
            axes.broken_barh(drawn, (foot, lane.height), color=colour, linewidth=edge)
        middles.append(foot + lane.height / 2)
        foot += lane.height + LANE_GAP
    axes.set_yticks(middles, [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(start, end), ylim=(-LANE_GAP / 2, foot - LANE_GAP / 2))
