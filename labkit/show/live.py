"""The live view of a run: a small canvas in a notebook, one line of text everywhere else.

The kernel only packs float32 numbers; the browser draws them. When the run is over the canvas
gives way to the final figure as a PNG, so a saved notebook reads well where no widgets run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from labkit.results.run import Run
from labkit.show.follow import Follower, closing_line, recorded_mark
from labkit.show.style import png_of

HERE = Path(__file__).parent
FIGURE_TEXT = "<labkit figure>"  # one for all, before and after: nbval compares texts
SHARPNESS = 1.5  # pixels of a stored figure per CSS pixel: sharp enough, and small in the notebook


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows: the device's busy intervals, and its utilization so far.

    `before` is an earlier run whose utilization is drawn faintly behind. Traits are the whole
    state, so a page that is reloaded in the middle of a run finds its picture again.
    """

    _esm = HERE / "live.js"
    _css = HERE / "live.css"

    frame = traitlets.Bytes(b"").tag(sync=True)  # float32; see follow.pack
    overlay = traitlets.Bytes(b"").tag(sync=True)  # the frame of the run before
    overlay_name = traitlets.Unicode("run before").tag(sync=True)
    tick = traitlets.Int(0).tag(sync=True)  # frames sent
    status = traitlets.Unicode("").tag(sync=True)
    badge = traitlets.Unicode("").tag(sync=True)
    device = traitlets.Unicode("device").tag(sync=True)  # "CPU" or "GPU" once known
    running = traitlets.Bool(False).tag(sync=True)

    def __init__(self, before: Run | None = None, **traits: Any):
        super().__init__(**traits)
        self.title = ""  # what is being run, where it is one of several
        self.run: Run | None = None
        self.show_before(before)

    def show_before(self, before: Run | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        follower = Follower()
        known = before is not None and follower.read(before)
        self.overlay = follower.frame() if known else b""
        self.overlay_name = (recorded_mark(before) if known else "") or "run before"

    def update(self, run: Run) -> None:
        """Show what `run` has done by now; costs the kernel well under 1 ms."""
        with self.hold_sync():  # one message to the browser
            self._take_in(run)
            self.running = True
            self.status = self.title + self._follower.line(run)

    def finish(self, run: Run) -> None:
        """Show all of `run` and how it ended."""
        with self.hold_sync():
            self._take_in(run)
            self.running = False
            self.status = self.title + closing_line(run)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), FIGURE_TEXT)

    def _take_in(self, run: Run) -> None:
        if run is not self.run:
            self.run, self._follower = run, Follower()
            self.frame, self.device, self.badge = b"", "device", recorded_mark(run)
        if self.device == "device" and run.machine.kind != "unknown":
            self.device = run.machine.kind.upper()
        if self._follower.read(run):
            self.frame = self._follower.frame()
            self.tick += 1


class NotebookViewer:
    """Shows runs live in the output of a cell, and leaves their final figure there."""

    def __init__(self, before: Run | None = None, total: int | None = None):
        self.before, self.total, self.count = before, total, 0
        self.view = LiveView(before)
        self.handle = display(self.view, display_id=True)

    def next(self, label: str) -> None:
        """Say that the next of several runs is about to start, and how it is set."""
        self.count += 1
        self.view.title = f"run {self.count} of {self.total} ({label}): "
        self.view.show_before(self.view.run)

    def update(self, run: Run) -> None:
        """Draw what the run has done by now."""
        self.view.update(run)

    def finish(self, result: Any) -> None:
        """Replace the canvas by the final figure of `result`, a Run or a Sweep."""
        drawing = {} if self.before is None else {"before": self.before}
        self.handle.update(StaticFigure.of(result, **drawing))
        self.view.close()


class TextViewer:
    """Shows runs as one line on stderr, rewritten in place on a terminal; stdout stays free."""

    PERIOD_S = 0.2

    def __init__(self, before: Run | None = None, total: int | None = None):
        self.total, self.count, self.title = total, 0, ""
        self.run: Run | None = None
        self.shown, self.width = 0.0, 0

    def next(self, label: str) -> None:
        """Close the line of the run before, if any, and say how the next one is set."""
        if self.run is not None:
            self._end(closing_line(self.run))
        self.count += 1
        self.title = f"run {self.count} of {self.total} ({label}): "

    def update(self, run: Run) -> None:
        """Rewrite the line, a few times a second, if there is a terminal to do it on."""
        if run is not self.run:
            self.run, self.follower = run, Follower()
        if sys.stderr.isatty() and time.monotonic() - self.shown > self.PERIOD_S:
            self.shown = time.monotonic()
            self.follower.read(run)
            self._write("\r", self.follower.line(run), "")

    def finish(self, result: Any) -> None:
        """Write the closing line of the last run."""
        last = result if isinstance(result, Run) else self.run
        if last is not None:
            self._end(" ".join(filter(None, [recorded_mark(last), closing_line(last)])))

    def _end(self, line: str) -> None:
        self._write("\r" if sys.stderr.isatty() else "", line, "\n")
        self.width = 0

    def _write(self, start: str, line: str, end: str) -> None:
        line = self.title + line
        print(start + line.ljust(self.width), end=end, file=sys.stderr, flush=True)
        self.width = len(line)


class StaticFigure:
    """A figure as a PNG, with a text that is the same for every run: notebooks are compared."""

    def __init__(self, png: bytes, width: int, text: str):
        self.png, self.width, self.text = png, width, text

    @classmethod
    def of(cls, result: Any, **drawing: Any) -> StaticFigure:
        """Draw a Run or a Sweep; a text only, where nothing was measured."""
        if not _measured(result):
            line = closing_line(result) if isinstance(result, Run) else repr(result)
            return cls(b"", 0, line)
        return cls.drawn(result.plot(**drawing))

    @classmethod
    def drawn(cls, figure: Any) -> StaticFigure:
        """Render a matplotlib Figure, `figure`, at its own size."""
        width = round(figure.get_figwidth() * figure.dpi)
        return cls(png_of(figure, SHARPNESS), width, FIGURE_TEXT)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if not self.png:
            return {"text/plain": self.text}
        bundle = {"image/png": self.png, "text/plain": self.text}
        return bundle, {"image/png": {"width": self.width}}


def with_text(bundle: Any, text: str) -> Any:
    """Return a widget's MIME bundle (or bundle and metadata) with `text` as its plain text."""
    data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
    data = {**(data or {}), "text/plain": text}
    return (data, *metadata) if metadata else data


def _measured(result: Any) -> bool:
    if isinstance(result, Run):
        return result.utilization is not None
    return result.best is not None


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, whose front end can show widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def allow_widgets() -> None:
    """Colab shows widgets from packages only once it has been told to; nothing to do elsewhere."""
    if "google.colab" in sys.modules:
        sys.modules["google.colab"].output.enable_custom_widget_manager()


def viewer(before: Run | None = None, total: int | None = None) -> NotebookViewer | TextViewer:
    """Return what shows a run (or `total` of them) here: a live canvas, or a line of text."""
    if not in_notebook():
        return TextViewer(before, total)
    allow_widgets()
    return NotebookViewer(before, total)
