"""The look of every figure: colours, type, page, stacks, lanes, and the PNG of a notebook."""

from __future__ import annotations

import base64
import html
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.style
import numpy as np
import pandas
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from labkit.view import FIGURE_TEXT, PARTS

# Of text and lines: a grey of 4.9 to 1 against white and 3.8 to 1 against JupyterLab's dark page
INK = "#707070"
# Colours that are told apart with colour-blind eyes too (Okabe and Ito; the purple is Paul Tol's)
BLUE, VERMILION, SKY = "#0072B2", "#D55E00", "#56B4E9"
ORANGE, PURPLE, GREEN, _ = (colour for _, colour in PARTS.values())
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
# Of what is stacked or has a lane; any other has the next of LINES, and a lane the blue
COLOURS = {
    **dict(PARTS.values()),
    "loop waits for data": ORANGE,
    "loop body": GREEN,
    "device busy": GREEN,
    "waiting for another rank": SKY,
    "exchanging gradients": BLUE,
    "CPU operators": SKY,
    "DataLoader": ORANGE,
    "CUDA calls": VERMILION,
    "kernels": GREEN,
    "copies": PURPLE,
}
INSIDE = "#201800"  # of text in a bar

SHARPNESS = 1.5  # pixels of a stored figure per CSS pixel: sharp enough, and small in the notebook
PNG_COLOURS = 48  # of a stored figure
WIDTH_IN = 9.0  # 900 pixels at matplotlib's own 100 an inch: the width of a notebook's cell
LINE_IN = 0.2  # of title and notes
TITLE_LENGTH = 100  # characters in a line of it
NOTE_LENGTH = 140
LONGEST = 600  # characters of a text
LEGEND_LENGTH = 150  # characters beside each other, if all were as long as the longest
LABELLED = 0.07  # of the longest row: a part at least so wide has its number inside
EDGE_PT = 0.2  # so much is drawn around what is active in a lane: short intervals are to be seen

RC = {
    "axes.prop_cycle": cycler(color=LINES),
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color"], INK),
    "font.size": 8.5,
    "lines.markersize": 4,
    "axes.titlesize": "medium",
    "grid.color": INK,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a "$" in a name is no formula
}
# Decorates a drawing function: the kit's look, whatever style the user has set
our_style = matplotlib.style.context(["default", RC])


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
    figure.savefig(drawn, format="png", dpi=SHARPNESS * figure.dpi, transparent=True)
    with Image.open(drawn) as image:
        image.quantize(PNG_COLOURS, Image.Quantize.FASTOCTREE).save(
            packed, format="png", optimize=True
        )
    return packed.getvalue()


def page(
    title: str, notes: Iterable[str] = (), heights_in: Sequence[float] = (), height_in: float = 0
) -> tuple[Picture, list[Axes]]:
    """Return a Picture with a title, axes below each other, and notes in small print below them.

    The heights are with what stands around the axes; where the whole picture has a `height_in`,
    they only say how the axes share it.
    """
    head = textwrap.fill(figure_text(title), TITLE_LENGTH)
    foot = "\n".join(textwrap.fill(figure_text(note), NOTE_LENGTH) for note in notes if note)
    height = height_in or sum(heights_in) + LINE_IN * f"{head}\n\n{foot}".count("\n")
    figure = Picture(figsize=(WIDTH_IN, height), layout="constrained")
    left = {"x": 0.01, "ha": "left"}
    figure.suptitle(head, size=10, weight="bold", **left)
    figure.supxlabel(foot, size=8, **left)
    if not heights_in:
        return figure, []
    axes = figure.subplots(len(heights_in), height_ratios=heights_in, squeeze=False)
    return figure, [*axes.flat]


def legend_above(axes: Axes) -> None:
    """Name what is drawn, once each, over the axes, where it can hide nothing."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        columns = max(1, LEGEND_LENGTH // (max(map(len, labels)) + 6))  # with its sign
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns}
        axes.legend([*named.values()], [*named], **place)


def figure_text(text: str) -> str:
    """Make foreign text fit to draw: Europe's letters, one line, of bounded length."""
    shown = re.sub("[^ -~\xa0-\u04ff\u2010-\u2027\u2190-\u22ff]", "?", text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def stack(axes: Axes, widths: pandas.DataFrame) -> None:
    """Draw the columns of each row side by side, a wide one with its share; from top to bottom."""
    sums = widths.sum(axis=1)
    left = widths.cumsum(axis=1) - widths
    for name, own in widths.items():
        look = {"color": COLOURS.get(str(name)), "label": name}
        bars = axes.barh([*widths.index], own, 0.62, left[name], **look)
        texts = (own / sums).map("{:.0%}".format)
        is_wide = own >= LABELLED * sums.max()
        axes.bar_label(bars, texts.where(is_wide, ""), label_type="center", color=INSIDE)
    axes.invert_yaxis()
    legend_above(axes)


def draw_lanes(axes: Axes, lanes: Mapping[str, np.ndarray], start: float, end: float) -> None:
    """Draw what of each lane lies between `start` and `end`, from top to bottom.

    A lane is called by what was active in it, or "rank 3: " and that; (n, 2) starts and ends.
    """
    for row, (name, spans) in enumerate(lanes.items()):
        shown = spans[(spans[:, 1] > start) & (spans[:, 0] < end)]
        drawn = [(begin, stop - begin) for begin, stop in shown.tolist()]
        colour = COLOURS.get(name.split(": ")[-1], BLUE)
        axes.broken_barh(drawn, (row - 0.4, 0.8), color=colour, linewidth=EDGE_PT)
    axes.set_yticks(range(len(lanes)), [*lanes])
    axes.set(xlim=(start, end), ylim=(len(lanes) - 0.5, -0.5))
