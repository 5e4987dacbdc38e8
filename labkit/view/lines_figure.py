"""The costliest lines of a watched loop, and what its body does, in the figure of its run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from labkit.diagnosis.hot_lines import Lines
from labkit.view.primitives import Bar, hbars, hide_xaxis, patches, rows_in, stack
from labkit.view.style import (
    BEFORE,
    BLUE,
    COMPUTE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WAIT,
    legend_above,
    whole_percent,
)

MOST_LINES = 6  # of the loop, and half as many of the workers
LEAST_SHARE = 0.02  # of the time, of a line that is drawn
PLACE_LENGTH = 20  # characters of a line's place
LINE_LENGTH = 64
COLOURS = {"waiting": WAIT, "worker": WAIT, "between": BEFORE}  # of lines, by their phase
PARTS_OF_BODY = {  # (name, colour), by `Lines.body`
    "forward": ("forward", GREEN),
    "backward": ("backward", SKY),
    "optimizer": ("optimizer", BLUE),
    "torch": ("other torch", "#99DDBB"),
    "sync": ("waits for the device", PURPLE),
    "loader": ("another loader", WAIT),
    "python": ("Python", VERMILION),
    "logging": ("logging, files", "#882255"),
    "waiting": ("sleeps, locks, network", ORANGE),
}


def lines_panels(lines: Lines, bars: list[Bar]) -> list[tuple[float, float]]:
    """Return what `draw_lines` needs of a page: the space above each axes, and its height, in."""
    body = [(0.80, rows_in(1))] if lines.body else []
    return [*body, (0.45, rows_in(len(bars)))]


def draw_lines(axes: list[Axes], lines: Lines, bars: list[Bar]) -> None:
    """Draw the body of the loop as one bar of its parts, and below it the costliest lines."""
    if lines.body:
        parts = {}
        for part, (name, colour) in PARTS_OF_BODY.items():
            share = lines.body.get(part, 0.0)
            if share >= LEAST_SHARE:
                parts[part] = (f"{name} {share:.0%}", colour)
        stack(axes[0], {"loop body": lines.body}, parts, whole_percent)
        legend_above(axes[0], patches(parts.values()))
        hide_xaxis(axes[0])
    hbars(axes[-1], bars, "share of the time (of workers: of their work), by line of your code")
    shared = max(each.get_xlim()[1] for each in axes)
    for each in axes:
        each.set_xlim(0, shared)  # all are shares of one time
    axes[-1].set_xticks([tick for tick in axes[-1].get_xticks() if tick <= min(shared, 1)])
    axes[-1].xaxis.set_major_formatter(PercentFormatter(1))


def line_bars(lines: Lines) -> list[Bar]:
    """Return a bar for each of the costliest lines of a loop and of its workers."""
    loop = [line for line in lines.lines if line.phase != "worker"][:MOST_LINES]
    workers = [line for line in lines.lines if line.phase == "worker"][: MOST_LINES // 2]
    bars = []
    for line in [*loop, *workers]:
        if line.share >= LEAST_SHARE:
            what = f"{line.phase}, {line.function}(): {line.call or line.kind}"
            text = f"{line.share:.0%} {what}"[:LINE_LENGTH]
            colour = COLOURS.get(line.phase, COMPUTE)
            bars.append(Bar(line.place[-PLACE_LENGTH:], line.share, text, colour))
    return bars
