"""The look of every figure: colours, type, page layout, and the PNG that a notebook stores."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.style
import numpy as np
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from labkit.view import FIGURE_TEXT

# Colours that are told apart with colour-blind eyes too (Okabe and Ito; the purple is Paul Tol's)
LINES = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = LINES[:-1]  # without black
YELLOW = "#F0E442"
# What a moment of a step is spent on: {part: (name, colour)}, in the order it happens
PARTS = {
    "wait": ("waiting for data", ORANGE),
    "copy": ("copy", PURPLE),
    "compute": ("compute", GREEN),
    "other": ("other", "#BBBBBB"),
}
WAIT, COPY, COMPUTE, OTHER = (colour for _, colour in PARTS.values())
BEFORE = "#555555"  # the run before this one
ALARM = "#C8501A"  # RECORDED, failed, noisy

# In a notebook: a grey of 4.9 to 1 against white and 3.8 to 1 against JupyterLab's dark page, and
# the least difference between red, green and blue that makes a colour
INK = 0.44
NEUTRAL = 0.05
INSIDE = "#201800"  # of text in a bar: dark on every page, so not neutral

SHARPNESS = 1.5  # pixels of a stored figure per CSS pixel: sharp enough, and small in the notebook
WIDTH_IN = 9.0
DPI = 100  # 900 pixels: the width of a notebook's cell
TOP_IN = 0.12
LINE_IN = 0.19  # of the header
CHARACTER_IN = 0.0077  # at most, on average, per point of font size
BOLD_IS_WIDER = 1.17
TEXT_SIZE = 8.5
SIDES = 0.84  # of the figure's width, at most, for a legend: beside it are the names of the axes

RC = {
    "axes.prop_cycle": cycler(color=LINES),
    "font.size": TEXT_SIZE,
    "axes.titlesize": 9,
    "axes.labelsize": TEXT_SIZE,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a "$" in a name is no formula
}
# Decorates a drawing function: the kit's look, whatever style the user has set
our_style = matplotlib.style.context(["default", RC])


# How a line of text looks, as matplotlib takes it
PLAIN = {"size": TEXT_SIZE}
BOLD = {"size": 10, "weight": "bold"}
GREY = {"size": 8, "color": BEFORE}
LOUD = PLAIN | {"color": ALARM, "weight": "bold"}
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
    """Return a figure as PNG in 128 colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=SHARPNESS * figure.dpi, metadata={"Software": None})
    with Image.open(drawn) as image:
        clear = on_any_paper(np.asarray(image.convert("RGB")))
    few = Image.fromarray(clear).quantize(128, Image.Quantize.FASTOCTREE)
    packed = io.BytesIO()
    few.save(packed, format="png", optimize=True)
    return packed.getvalue()


def on_any_paper(pixels: np.ndarray) -> np.ndarray:
    """Return (y, x, 4) uint8 of (y, x, 3) drawn on white: to be read on a dark page as well.

    White becomes clear, a pale colour thin; black and dark grey become `INK`.
    """
    shown = pixels / 255.0
    low = shown.min(axis=-1)
    high = shown.max(axis=-1)
    alpha = np.minimum(1.0, (1.0 - low) / (1.0 - INK))[..., None]
    colour = (shown - 1.0 + alpha) / np.maximum(alpha, 1e-6)  # so that white paper changes nothing
    colour[high - low < NEUTRAL] = INK
    return np.round(255 * np.dstack([colour, alpha])).astype(np.uint8)


def page(
    lines: Sequence[TextLine], heights_in: Sequence[float], height_px: int = 0
) -> tuple[Picture, list[Axes]]:
    """Return a Picture with a header, and below it axes of these heights.

    Each of the `lines` is wrapped. The heights are in inches, with what stands around the axes;
    where the whole picture has a `height_px`, they only say how the axes share it.
    """
    rows = wrapped(lines)
    header = TOP_IN + LINE_IN * len(rows)
    height = height_px / DPI or header + sum(heights_in) + TOP_IN
    layout = ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.1, rect=(0, 0, 1, 1 - header / height))
    figure = Picture(figsize=(WIDTH_IN, height), dpi=DPI, facecolor="white", layout=layout)
    for number, (text, look) in enumerate(rows):
        top = 1 - (TOP_IN + number * LINE_IN) / height
        figure.text(0.01, top, text, va="top", **look)
    if not heights_in:
        return figure, []
    drawn = figure.subplots(len(heights_in), height_ratios=heights_in, squeeze=False)
    return figure, list(drawn[:, 0])


def wrapped(lines: Sequence[TextLine]) -> list[TextLine]:
    """Return the lines of a header as the rows that they take, each with its look."""
    rows = []
    for text, look in lines:
        wide = CHARACTER_IN * look["size"] * (BOLD_IS_WIDER if "weight" in look else 1)
        shown = textwrap.wrap(drawable(" ".join(text.split())), int((WIDTH_IN - 0.24) / wide))
        rows += [(row, look) for row in shown]
    return rows


def legend_above(axes: Axes, handles: Sequence[Artist] = ()) -> None:
    """Name what is drawn over the axes, where it can hide nothing, in as few rows as it takes."""
    handles = handles or axes.get_legend_handles_labels()[0]
    for columns in range(len(handles), 0, -1):
        drawn = axes.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            frameon=False,
            ncols=columns,
            borderaxespad=0.2,
            handlelength=1.5,
            columnspacing=1.4,
            labelspacing=0.3,
        )
        if drawn.get_window_extent().width < SIDES * WIDTH_IN * DPI:
            return


def drawable(text: str, length: int = 600) -> str:
    """Make foreign text fit to draw: what the font can show, on one line, of bounded length."""
    font = get_font(findfont("DejaVu Sans"))
    shown = ""
    for character in text:
        has_glyph = character.isprintable() and font.get_char_index(ord(character))
        shown += character if has_glyph else "?"
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def whole_percent(share: float | None) -> str:
    """Write a share of 1 as a whole percentage; "unknown" where there is none."""
    return "unknown" if share is None else f"{share:.0%}"


def ms(value: float) -> str:
    """Write a time given in ms with three digits or so, without its unit."""
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
