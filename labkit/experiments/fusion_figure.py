"""Fusing: the gain predicted from bytes beside the one measured, and against the array size."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from labkit.experiments.fusion_gain import Gain, gains, largest
from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import BEFORE, LINES, legend_above, our_style, page

WIDTH = 0.27


@our_style
def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw predicted and measured gain at the largest arrays, and the gain by array size.

    Dashed lines are the prediction from bytes, which knows no launch cost and no cache. The line
    at 1 is "no gain".
    """
    every = gains(measured)
    if not any(gain.measured for gain in every):
        return page(measured_header(measured, before), [])[0]
    panels = [(0.3, 1.3), (0.75, 1.7)]
    size = f"arrays of {largest(measured)[0].array_mib:.4g} MiB each"
    figure, (bars, sizes) = page(measured_header(measured, before, size), panels)
    _draw_bars(bars, largest(measured), largest(before) if before else [])
    _draw_sizes(sizes, every)
    return figure


def _draw_bars(axes: Any, at_largest: list[Gain], old: list[Gain]) -> None:
    kinds = (
        ("predicted from the bytes", "predicted", "#BBBBBB"),
        ("predicted, every write reads first", "predicted_write_allocate", "#7F7F7F"),
        ("measured", "measured", LINES[2]),
    )
    for i, gain in enumerate(at_largest):
        for k, (_, name, colour) in enumerate(kinds):
            value = getattr(gain, name)
            if value is None:
                continue
            x = i + (k - 1) * WIDTH
            axes.bar(x, value, WIDTH * 0.94, color=colour)
            axes.annotate(f"{value:.2f}x", (x, value), (0, 3), textcoords="offset points",
                          ha="center")  # fmt: skip
        if i < len(old) and old[i].measured:
            middle = i + WIDTH
            axes.plot([middle - WIDTH / 2, middle + WIDTH / 2], [old[i].measured] * 2,
                      color=BEFORE, lw=2)  # fmt: skip
    axes.axhline(1, color="#999999", lw=0.8, ls=":")
    axes.set_xticks(range(len(at_largest)), [gain.chain for gain in at_largest])
    axes.set_ylim(0, 1.18 * axes.get_ylim()[1])
    axes.set_ylabel("eager / fused, time")
    handles = [Line2D([], [], color=c, lw=6, label=label) for label, _, c in kinds]
    legend_above(axes, handles)


def _draw_sizes(axes: Any, every: list[Gain]) -> None:
    chains = list(dict.fromkeys(gain.chain for gain in every))
    handles = []
    for i, chain in enumerate(chains):
        mine = [gain for gain in every if gain.chain == chain and gain.measured]
        colour = LINES[i]
        axes.plot([g.array_mib for g in mine], [g.measured for g in mine], "o-", color=colour)
        if mine:
            axes.axhline(mine[0].predicted, color=colour, lw=1, ls="--")
        handles.append(Line2D([], [], color=colour, marker="o", label=f"{chain}, measured"))
    handles.append(Line2D([], [], color="black", ls="--", lw=1, label="predicted from the bytes"))
    axes.axhline(1, color="#999999", lw=0.8, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}x"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _y, _: ""))
    axes.xaxis.set_major_formatter(FuncFormatter(_size))
    axes.set_xlabel("size of one array")
    axes.set_ylabel("gain by fusing")
    legend_above(axes, handles)


def _size(mib: float, _: Any) -> str:
    return f"{mib:g} MiB" if mib >= 1 else f"{mib * 1024:g} KiB"
