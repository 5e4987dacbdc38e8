"""The figure of a run's lines: what the loop's body was made of, and where in the code it was."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.analysis.lines import Lines
from labkit.show.primitives import Bar, hbars, rows_in, stack
from labkit.show.run_header import BOLD, GREY
from labkit.show.style import BEFORE, COMPUTE, WAIT, our_style, page

MOST, LEAST = 6, 0.02  # lines that are drawn, of workers half as many; and their share
LABELLED = 0.07  # a part of the body at least this wide has its number written in
COLOURS = {"waiting": WAIT, "worker": WAIT, "between": BEFORE}  # of lines, by their phase
PARTS = {  # of a loop's body: (name, colour), by `Lines.body`
    "forward": ("forward", "#009E73"),
    "backward": ("backward", "#56B4E9"),
    "optimizer": ("optimizer", "#0072B2"),
    "torch": ("other torch", "#99DDBB"),
    "sync": ("waits for the device", "#AA4499"),
    "validation": ("validation", "#F0E442"),
    "python": ("Python", "#D55E00"),
    "logging": ("logging, files", "#882255"),
    "waiting": ("sleeps, locks, network", "#E69F00"),
}


@our_style
def draw(lines: Lines) -> Figure:
    """Draw what the loop's body was made of, and a bar for each of the costliest lines."""
    bars = line_bars(lines)
    if not bars:
        return page([(f"No lines: {lines.missing or 'none has 2 % of the time'}.", GREY)], [])[0]
    top = lines.lines[0]
    title = f"{top.share:.0%} of the time is in {top.what}"
    figure, axes = page([(title, BOLD)], panels(lines, bars))
    draw_lines(axes, lines, bars)
    return figure


def panels(lines: Lines, bars: list[Bar]) -> list[tuple[float, float]]:
    """Return the space above, and the height, of the panels that `draw_lines` needs, in inches."""
    body = [(0.80, rows_in(1))] if lines.body else []
    return [*body, (0.45, rows_in(len(bars)))]


def draw_lines(axes: list[Axes], lines: Lines, bars: list[Bar]) -> None:
    """Draw the body of the loop as one bar of its parts, and below it the costliest lines."""
    if found := lines.body:
        known = {part: look for part, look in PARTS.items() if found.get(part, 0.0) >= LEAST}
        named = {p: (f"{name} {found[p]:.0%}", colour) for p, (name, colour) in known.items()}
        stack(axes[0], [("loop body", found, "")], named, "", inside=_inside)
        axes[0].set_xticks([])
        axes[0].spines["bottom"].set_visible(False)
    hbars(axes[-1], bars, "share of the time (of workers: of their work), by line of your code")
    axes[-1].set_xticks([tick for tick in axes[-1].get_xticks() if tick <= 1])
    axes[-1].xaxis.set_major_formatter(PercentFormatter(1))


def _inside(share: float) -> str:
    return f"{share:.0%}" if share >= LABELLED else ""


def line_bars(lines: Lines) -> list[Bar]:
    """Return a bar for each of the costliest lines of a loop and of its workers."""
    found = lines.lines
    loop = [line for line in found if line.phase != "worker"][:MOST]
    workers = [line for line in found if line.phase == "worker"][: MOST // 2]
    return [
        Bar(line.place[-20:], line.share,
            f"{line.share:.0%} {line.phase}, {line.function}(): {line.call or line.kind}"[:64],
            COLOURS.get(line.phase, COMPUTE))
        for line in [*loop, *workers] if line.share >= LEAST
    ]  # fmt: skip
