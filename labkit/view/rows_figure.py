"""`lk.plot`: measured rows as a figure, lines over numbers and bars for names."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from labkit.bench.grid import NOISY
from labkit.view.marks import draw_legend, draw_series, legend_in
from labkit.view.series import (
    Rows,
    Series,
    SeriesMaker,
    frame_of,
    name_of,
    origin_of,
)
from labkit.view.style import BEFORE, DPI, WIDTH_IN, Font, Picture, drawable, our_style, wrapped

LOGS = (None, "", "x", "y", "xy")
NOTE = Font(size=7.5, colour=BEFORE)
NOTE_IN = 0.14
TITLE_IN = 0.25
HOLLOW = f"hollow: noisy, spread above {NOISY:.0%} of the median"


@our_style
def plot(
    rows: Rows,
    x: str,
    y: str,
    by: str | None = None,
    *,
    beside: Rows | None = None,
    earlier: Rows | None = None,
    title: str = "",
    log: str | None = None,
) -> Picture:
    """Draw column `y` over column `x`: lines where x is a number, bars where it is text.

    Args:
        rows: What `lk.measure` or `lk.published` returned, or any DataFrame. A row with an `error`
            or without a `y` is a gap, named below the axes; one that is `noisy` is hollow.
        x: The column along the axis; powers of two are drawn at equal distances.
        y: The column to show; "ms" has the interquartile range as error bars.
        by: A column: each of its values has a colour.
        beside: Another such table, dashed: published numbers, or a record of another machine.
        earlier: The same table before a change, paler.
        title: Above the figure.
        log: The logarithmic axes: "x", "y", "xy", or "" for none. None decides for x alone. Beside
            names a logarithmic y has points instead of bars.

    Rows with the same `x` are points without a line.
    Raises ValueError on a column that is not there.
    """
    if log not in LOGS:
        raise ValueError(f"log={log!r} is not allowed: use 'x', 'y', 'xy', '' or None.")
    maker = SeriesMaker(x, y, by)
    series = maker.own(rows, "" if beside is None else name_of(rows))
    if earlier is not None:
        series = maker.paler(earlier) + series
    if beside is not None:
        series += maker.beside(beside)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Picture(dpi=DPI, facecolor="white", layout=layout)
    axes = figure.subplots()
    height = draw_series(axes, series, x, y, log) + legend_in(series)
    draw_legend(axes)
    height += write_title(figure, title) + write_notes(figure, notes_of(rows, series, x, y))
    figure.set_size_inches(WIDTH_IN, height)
    return figure


def write_title(figure: Figure, title: str) -> float:
    """Write a title above the axes; return the height that it needs, inches."""
    if not title:
        return 0.0
    figure.suptitle(
        drawable(title), fontsize=10, fontweight="bold", x=0.01, ha="left", parse_math=False
    )
    return TITLE_IN


def write_notes(figure: Figure, notes: Sequence[str]) -> float:
    """Write notes below the axes; return the height that they need, inches."""
    lines = [line for line, _ in wrapped([(note, NOTE) for note in notes])]
    if lines:
        text = "\n".join(lines)
        look = {"fontsize": NOTE.size, "color": NOTE.colour}
        figure.supxlabel(text, x=0.01, ha="left", parse_math=False, **look)
    return NOTE_IN * len(lines)


def notes_of(table: Rows, series: Sequence[Series], x: str, y: str) -> list[str]:
    """Return what stands below the axes: who measured, what is missing, what error bars are."""
    notes = []
    frame = frame_of(table)
    origin = origin_of(table, frame)
    if origin:
        names_cards = "card" in frame and x != "card"
        cards = ", ".join(frame["card"].unique()) if names_cards else ""
        notes.append(": ".join(filter(None, [cards, origin])))
    for each in series:
        notes += each.gaps(f"no {y}")
    if any(each.spread.any() for each in series):
        notes.append("error bars: half the interquartile range up and down")
    if any(each.noisy.any() for each in series):
        notes.append(HOLLOW)
    return notes
