"""The figure of a knee: step time and samples/s against the batch, and the line through them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from labkit.analysis.knee import Knee
from labkit.show.run_header import several_header
from labkit.show.style import BEFORE, LINES, legend_above, ms, our_style, page

MEASURED, LINE, KNEE = LINES[0], BEFORE, LINES[1]


@our_style
def draw(knee: Knee) -> Figure:
    """Draw compute time of a step over samples/s, both against the batch, all logarithmic."""
    text = f"step = {ms(knee.fixed_ms)} ms + {knee.sample_ms:.3g} ms x batch; {knee.line}"
    header = several_header("compute time of a step against the batch", [text], knee.runs)
    figure, (upper, lower) = page(header, [(0.24, 1.9), (0.2, 1.6)])
    batch = np.geomspace(min(knee.sizes), max(knee.sizes), 200)
    line = knee.predicted_ms(batch)
    sizes, times = np.array(knee.sizes, float), np.array(knee.step_ms)
    for axes, measured, fitted in (
        (upper, times, line),
        (lower, sizes / times * 1e3, batch / line * 1e3),
    ):
        axes.loglog(batch, fitted, color=LINE, linewidth=1.2)
        axes.loglog(sizes, measured, "o-", color=MEASURED, linewidth=1.4, markersize=5)
        if knee.batch_size is not None:
            axes.axvline(knee.n_half, color=KNEE, linewidth=1.2, linestyle="--")
        _ticks(axes, knee.sizes)
    upper.tick_params(labelbottom=False)
    upper.set_ylabel("compute of a step, ms")
    lower.set_ylabel("samples/s of compute")
    lower.set_xlabel("batch_size")
    legend_above(upper, _legend(knee))
    return figure


def _ticks(axes: Axes, sizes: tuple[int, ...]) -> None:
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)


def _legend(knee: Knee) -> list[Line2D]:
    found = [
        Line2D([], [], color=MEASURED, marker="o", markersize=5, label="measured (median)"),
        Line2D([], [], color=LINE, label="fixed part + part per sample"),
    ]
    if knee.batch_size is None:
        return found
    return [*found, Line2D([], [], color=KNEE, linestyle="--", label=f"knee: {knee.batch_size}")]
