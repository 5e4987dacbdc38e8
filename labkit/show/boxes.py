"""Boxes, arrows and labels: what drawings of hardware are made of."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from labkit.show.style import drawable, literal

EDGE = "#444444"


def box(
    axes: Axes, x: float, y: float, wide: float, tall: float, colour: str, text: str = ""
) -> None:
    """Draw a rounded box with its lower left corner at (x, y), in the axes' units, and its text."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y), wide, tall, boxstyle="round,pad=0,rounding_size=0.06", linewidth=0.9,
            facecolor=colour, edgecolor=EDGE,
        )
    )  # fmt: skip
    say(axes, x + wide / 2, y + tall / 2, text)


def cell(axes: Axes, x: float, y: float, wide: float, tall: float, colour: str) -> None:
    """Draw a plain little rectangle without an outline: one of many."""
    axes.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, linewidth=0))


def say(axes: Axes, x: float, y: float, text: str, **font: Any) -> None:
    """Write text, by default with (x, y) in its middle."""
    style = {"ha": "center", "va": "center", "fontsize": 8.5, "linespacing": 1.35, **font}
    shown = "\n".join(drawable(line, 120) for line in text.split("\n"))
    literal(axes.text(x, y, shown, **style))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    """Draw an arrow."""
    look = {"arrowstyle": "-|>", "color": EDGE, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look | style)


def canvas(axes: Axes, wide: float, tall: float) -> None:
    """Make the axes a plain sheet of `wide` by `tall` inches, one unit an inch."""
    axes.set_axis_off()
    axes.set_xlim(0, wide)
    axes.set_ylim(0, tall)
