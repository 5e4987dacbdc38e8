"""Progress and results on screen: a line on stderr, or the output of a notebook cell.

On a terminal the line is rewritten in place, in a log written once at the end; stdout stays free.
In a notebook it is the output of the cell, and gives way to a figure.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.api import Ranks, Run, Sweep
from labkit.process.notebook import in_notebook
from labkit.text import counted, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kept = TypeVar("Kept")

PERIOD_S = 0.2  # s between two updates: a person reads no faster
LEAST_IPYWIDGETS = 8


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


def figure_of(result: Run | Ranks | Sweep, before: Run | None = None) -> Figure | None:
    """Draw what came out, over `before`; None where nothing was measured."""
    measured = result.best if isinstance(result, Sweep) else result.throughput
    if measured is None:
        return None
    return result.plot(before) if isinstance(result, Run) else result.plot()


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


def remember(function: Callable[..., object], result: Kept) -> Kept:
    """Keep a result as `function.last`, as in `lk.run.last`: an interrupted call returns none."""
    vars(function)["last"] = result
    return result
