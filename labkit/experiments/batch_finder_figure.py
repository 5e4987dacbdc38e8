"""The figure of the search for the largest batch: what each try took, against the limit."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.experiments.largest_batch import LargestBatch
from labkit.show.run_header import BOLD, GREY, Line
from labkit.show.style import ALARM, COMPUTE, legend_above, our_style, page


@our_style
def draw(search: LargestBatch) -> Figure:
    """Draw the peak of every try against its batch: dots that fit, crosses that were refused."""
    figure, (axes,) = page(_header(search), [(0.24, 2.3)])
    limit = search.limit_gib or 0
    _draw_limit(axes, limit, search.margin)
    for done in search.tried:
        if done.fits and done.peak_gib is not None:
            face = COMPUTE if done.confirming else "white"
            style = {"color": COMPUTE, "markersize": 6, "markerfacecolor": face, "zorder": 3}
            axes.plot(done.batch_size, done.peak_gib, "o", **style)
        elif not done.fits:
            axes.plot(done.batch_size, limit * (1 - search.margin), "x", color=ALARM,
                      markersize=8, markeredgewidth=2, zorder=3)  # fmt: skip
    _name_best(axes, search)
    axes.set_ylim(0, limit * 1.12 or 1)
    axes.set_xlim(0, max((t.batch_size for t in search.tried), default=1) * 1.08)
    axes.set_xlabel("batch size, samples")
    axes.set_ylabel("peak memory, GiB")
    legend_above(axes, _legend(search.margin))
    return figure


def _header(search: LargestBatch) -> list[Line]:
    knobs = ", ".join(f"{n}={v!r}" for n, v in search.pipeline.changed().items())
    lines = [(search.line, BOLD), (knobs or "the default pipeline", {})]
    refused = next((t for t in search.tried if t.why), None)
    if refused is not None:
        lines.append((f"refused at {refused.batch_size}: {refused.why}"[:150], GREY))
    return [*lines, (search.machine.line, GREY)]


def _draw_limit(axes: Axes, limit: float, margin: float) -> None:
    axes.axhspan(limit * (1 - margin), limit, color="#F3D9CC", linewidth=0)
    axes.axhline(limit, color=ALARM, linewidth=1.3)


def _name_best(axes: Axes, search: LargestBatch) -> None:
    best = [t for t in search.tried if t.confirming and t.batch_size == search.batch_size]
    if best and best[-1].peak_gib is not None:
        axes.annotate(
            f"{best[-1].batch_size}", (best[-1].batch_size, best[-1].peak_gib), (-6, -4),
            textcoords="offset points", ha="right", va="top", fontsize=9, fontweight="bold",
        )  # fmt: skip


def _legend(margin: float) -> list[Any]:
    dot: dict[str, Any] = {"color": COMPUTE, "marker": "o", "linestyle": ""}
    return [
        Line2D([], [], label="fits", markerfacecolor="white", **dot),
        Line2D([], [], label="fits, checked again", **dot),
        Line2D([], [], label="refused", color=ALARM, marker="x", linestyle="", mew=2),
        Line2D([], [], label="limit", color=ALARM),
        Line2D([], [], label=f"margin of {margin:.0%}", color="#F3D9CC", linewidth=6),
    ]
