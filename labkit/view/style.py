"""The look of every figure: colours, type, page, stacks, lanes, and the PNG of a notebook."""

from __future__ import annotations

import base64
import html
import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
import numpy as np
import pandas
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from PIL import Image

from labkit.results.measurements import short
from labkit.view import FIGURE_TEXT

# Of text and lines: a grey of 4.9 to 1 against white and 3.8 to 1 against JupyterLab's dark page
INK = "#707070"
# Colours that are told apart with colour-blind eyes too (Okabe and Ito; the purple is Paul Tol's)
LINES = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9", INK)
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = LINES[:-1]  # without grey
# What a moment of a step is spent on: {part: (name, colour)}, in the order it happens
PARTS = {
    "wait": ("waiting for data", ORANGE),
    "copy": ("copy", PURPLE),
    "compute": ("compute", GREEN),
    "other": ("other", "#BBBBBB"),
}
WAIT, COPY, COMPUTE, OTHER = (colour for _, colour in PARTS.values())
ALARM = "#C8501A"  # RECORDED, failed, noisy
INSIDE = "#201800"  # of text in a bar

SHARPNESS = 1.5  # pixels of a stored figure per CSS pixel: sharp enough, and small in the notebook
COLOURS = 48  # of a stored figure
WIDTH_IN = 9.0
DPI = 100  # 900 pixels: the width of a notebook's cell
TOP_IN = 0.12
LINE_IN = 0.19  # of the header
LINE_LENGTH = 960  # characters in a line of the header, times their size in points
MOST_LINES = 6  # that a text of it takes
LEGEND_LENGTH = 120  # characters beside each other
LABELLED = 0.07  # of the longest row: a part at least so wide has its number inside
LANE_GAP = 0.3  # between two lanes, of a lane's usual height
SPARSE = 0.01  # of the picture: of what is active for less, short intervals are to be seen, too
EDGE_PT = 0.4  # so much is drawn around each of these

RC = {
    "axes.prop_cycle": cycler(color=LINES),
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color", "hatch.color"], INK),
    "font.size": 8.5,
    "axes.titlesize": "medium",
    "grid.color": INK,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.5,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a "$" in a name is no formula
}
# Decorates a drawing function: the kit's look, whatever style the user has set
our_style = matplotlib.style.context(["default", RC])

# How a line of text looks, as matplotlib takes it
BOLD = {"size": 10, "weight": "bold"}
GREY = {"size": 8}
LOUD = {"size": 8.5, "color": ALARM, "weight": "bold"}
TextLine = tuple[str, dict[str, Any]]  # and its look


class Picture(Figure):
    """A Figure that shows itself in a notebook, whether or not pyplot was imported.

    Its text is the same for every figure, as nbval compares texts.
    """

    def html(self, alt: str) -> str:
        """Return it as an image in a page, with a text for who cannot see it."""
        data = base64.b64encode(png_of(self)).decode()
        look = f"width='{self.bbox.width:.0f}' style='max-width:100%'"
        return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" {look}>'

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        bundle = {"image/png": png_of(self), "text/plain": FIGURE_TEXT}
        return bundle, {"image/png": {"width": round(self.bbox.width)}}


def png_of(figure: Figure) -> bytes:
    """Return a figure as PNG in few colours, on clear paper: to be read on a dark page as well."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    look = {"dpi": SHARPNESS * figure.dpi, "transparent": True, "metadata": {"Software": None}}
    figure.savefig(drawn, format="png", **look)
    with Image.open(drawn) as image:
        image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(packed, format="png", optimize=True)
    return packed.getvalue()


def page(
    lines: Sequence[TextLine], heights_in: Sequence[float] = (), height_px: int = 0
) -> tuple[Picture, list[Axes]]:
    """Return a Picture with a header, and below it axes of these heights.

    Each of the `lines` is wrapped. The heights are in inches, with what stands around the axes;
    where the whole picture has a `height_px`, they only say how the axes share it.
    """
    rows = []
    for text, look in lines:
        width = int(LINE_LENGTH / look["size"])
        wrapped = textwrap.wrap(text, width, max_lines=MOST_LINES, placeholder=" …")
        rows += [(drawable(row), look) for row in wrapped]
    header = TOP_IN + LINE_IN * len(rows)
    height = height_px / DPI or header + sum(heights_in) + TOP_IN
    layout = ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.1, rect=(0, 0, 1, 1 - header / height))
    figure = Picture(figsize=(WIDTH_IN, height), dpi=DPI, facecolor="white", layout=layout)
    for number, (text, look) in enumerate(rows):
        figure.text(0.01, 1 - (TOP_IN + number * LINE_IN) / height, text, va="top", **look)
    if not heights_in:
        return figure, []
    drawn = figure.subplots(len(heights_in), height_ratios=heights_in, squeeze=False)
    return figure, list(drawn[:, 0])


def legend_above(axes: Axes, handles: Sequence[Artist] = ()) -> None:
    """Name what is drawn over the axes, where it can hide nothing, in as few rows as it takes."""
    handles = handles or axes.get_legend_handles_labels()[0]
    if handles:
        length = sum(len(str(handle.get_label())) + 6 for handle in handles)  # with its sign
        columns = math.ceil(len(handles) / math.ceil(length / LEGEND_LENGTH))
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def drawable(text: str, length: int = 600) -> str:
    """Make foreign text fit to draw: Europe's letters, one line, of bounded length."""
    shown = re.sub("[^ -~\xa0-\u04ff\u2010-\u2027\u2190-\u22ff]", "?", text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def ms(value: float) -> str:
    """Write a time given in ms with three digits, without its unit."""
    return str(short(round(value, 2)))


def stack(
    axes: Axes, rows: Mapping[str, Mapping[str, float]], parts: Mapping[str, tuple[str, str]]
) -> None:
    """Draw the parts of each row side by side, a wide one with its share; rows from top to bottom.

    Args:
        axes: Where to draw.
        rows: {name: {part: value}}.
        parts: {part: (name, colour)}, from left to right.
    """
    widths = pandas.DataFrame(rows).T
    sums = widths.sum(axis=1)
    left = 0.0
    for part, (name, colour) in parts.items():
        own = widths[part]
        bars = axes.barh([*widths.index], own, 0.62, left, color=colour, label=name)
        texts = [f"{share:.0%}" for share in own / sums]
        is_wide = own >= LABELLED * sums.max()
        axes.bar_label(bars, np.where(is_wide, texts, ""), label_type="center", color=INSIDE)
        left = left + own
    axes.invert_yaxis()
    legend_above(axes)


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
    axes.set(xlim=(start, end), ylim=(-LANE_GAP / 2, foot - LANE_GAP / 2))
