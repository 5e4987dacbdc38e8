"""Boxes, arrows and labels: what drawings of hardware are made of."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from labkit.show.style import drawable, literal

EDGE = "#444444"
WIDE = 7.9  # inches: of a drawing


def canvas(axes: Axes, tall: float) -> None:
    """Make the axes a plain sheet of `WIDE` by `tall` inches, one unit an inch."""
    axes.set_axis_off()
    axes.set(xlim=(-0.05, WIDE + 0.05), ylim=(0, tall))


def box(
    axes: Axes, x: float, y: float, wide: float, tall: float, colour: str, text: str = ""
) -> None:
    """Draw a rounded box with its lower left corner at (x, y), in the axes' units, and its text."""
    look = {"facecolor": colour, "edgecolor": EDGE, "linewidth": 0.9}
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), wide, tall, boxstyle=shape, **look))
    say(axes, x + wide / 2, y + tall / 2, text)


def say(axes: Axes, x: float, y: float, text: str, **font: Any) -> None:
    """Write text with (x, y) in its middle."""
    look = {"ha": "center", "va": "center", "fontsize": 8.5, "linespacing": 1.35, **font}
    literal(axes.text(x, y, "\n".join(drawable(line, 120) for line in text.split("\n")), **look))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    look = {"arrowstyle": "-|>", "color": EDGE, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look)
