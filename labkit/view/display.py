"""Progress and results on screen: a line on stderr, or the output of a notebook cell.

On a terminal the line is rewritten in place, in a log written once at the end; stdout stays free.
In a notebook it is the output of the cell, and gives way to a figure.
"""

from __future__ import annotations

import base64
import html
import sys
import time
from typing import TYPE_CHECKING, Any

from labkit.api import Ranks, Run, Sweep
from labkit.process.notebook import in_notebook
from labkit.results.log_data import LogData
from labkit.text import counted, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIOD_S = 0.2  # s between two updates: a person reads no faster
FIGURE_TEXT = "<labkit figure>"  # the same for every figure: nbval compares texts
LEAST_IPYWIDGETS = 8
SHARPNESS = 1.5  # pixels of a stored figure per CSS pixel: sharp enough, and small in the notebook


def why_no_widgets() -> str | None:
    """Let Colab show widgets from packages; say why ours do not show here, None where they may."""
    import ipywidgets

    version = ipywidgets.__version__
    if int(version.partition(".")[0]) < LEAST_IPYWIDGETS:
        needed = f"labkit needs {LEAST_IPYWIDGETS}: restart the session"
        return f"ipywidgets {version} is loaded, {needed}"
    if "google.colab" in sys.modules:
        try:
            sys.modules["google.colab"].output.enable_custom_widget_manager()
        except Exception as error:  # whatever Colab's own code raises
            return f"Colab's manager of widgets does not start ({error})"
    return None


class Display:
    """Progress on one line: call `line` as often as you like, and `final` once.

    `first` is shown in the line's place in a notebook, such as a widget that draws itself.
    """

    def __init__(self, first: object = None):
        self.text = ""
        self.shown_at = 0.0
        self.handle: Any = None  # of IPython, in a notebook
        self.live = False  # whether `first` is shown
        if not in_notebook():
            return
        from IPython.display import HTML, display

        why = None if first is None else why_no_widgets()
        if why:
            display(HTML(f"No live view, a picture at the end: {html.escape(why)}."))
        self.live = first is not None and not why
        self.handle = display(first if self.live else HTML(""), display_id=True)

    @property
    def due(self) -> bool:
        """Whether a user would see another line by now."""
        seen = self.handle is not None or sys.stderr.isatty()
        return seen and time.monotonic() - self.shown_at >= PERIOD_S

    def line(self, text: str, rich: object = None) -> None:
        """Say how far it is, a few times a second; `rich` is shown in its place in a notebook."""
        if self.due:
            self._show(text, rich, "")
            self.text = text
            self.shown_at = time.monotonic()

    def final(self, text: str = "", rich: object = None) -> None:
        """Leave `text`, or `rich` in its place in a notebook."""
        if self.handle is not None or text or sys.stderr.isatty():
            self._show(text, rich, "\n")
        self.text = ""

    def _show(self, text: str, rich: object, end: str) -> None:
        if self.handle is not None:
            from IPython.display import HTML

            self.handle.update(HTML(f"<code>{html.escape(text)}</code>") if rich is None else rich)
            return
        start = "\r" if sys.stderr.isatty() else ""
        shown = printable(text).ljust(len(self.text))  # over what the line before left
        print(f"{start}{shown}", end=end, file=sys.stderr, flush=True)


class StaticFigure:
    """A figure as a PNG, with a text that is the same for every run, as nbval compares texts."""

    def __init__(self, png: bytes, width: int, text: str):
        self.png = png
        self.width = width
        self.text = text

    @classmethod
    def of(cls, result: Run | Ranks | Sweep, before: Run | None = None) -> StaticFigure:
        """Draw what came out, over `before`; a text only, where nothing was measured."""
        measured = result.best if isinstance(result, Sweep) else result.throughput
        if measured is None:
            return cls(b"", 0, closing_line(result))
        return cls.drawn(result.plot(before) if isinstance(result, Run) else result.plot())

    @classmethod
    def drawn(cls, figure: Figure) -> StaticFigure:
        """Render a matplotlib Figure at its own size."""
        from labkit.view.style import png_of

        width = round(figure.get_figwidth() * figure.dpi)
        return cls(png_of(figure, SHARPNESS), width, FIGURE_TEXT)

    def html(self, alt: str) -> str:
        """Return it as an image in a page, with a text for who cannot see it."""
        data = base64.b64encode(self.png).decode()
        look = f"width='{self.width}' style='max-width:100%'"
        return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" {look}>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> object:
        if not self.png:
            return {"text/plain": self.text}
        bundle = {"image/png": self.png, "text/plain": self.text}
        return bundle, {"image/png": {"width": self.width}}


def stage_line(run: LogData) -> str:
    """Say what a run that has not measured anything yet is busy with."""
    stage = run.stage
    name = f"waiting: {stage['name']}" if stage.get("waiting") else stage["name"]
    return f"{name} {stage['done']}/{stage['total']}" if stage.get("total") else name


def closing_line(result: Run | Ranks | Sweep) -> str:
    """Say in one line how a run ended and what it measured."""
    if isinstance(result, Sweep):
        return repr(result)
    if result.error:
        return f"{result.outcome}: {result.error}"
    if result.throughput is None:
        return f"{result.ended}, too few to measure"
    steps = counted(result.steps, "step")
    return f"{result.outcome}: {steps}, {result.numbers}"
