"""The live view of runs: a small canvas in a notebook, one line of text everywhere else.

The kernel only sends numbers, which the browser draws (see live_frame.py). In the end the canvas
gives way to the final figure, as a PNG.
"""

from __future__ import annotations

import time
from pathlib import Path

import anywidget
import traitlets

from labkit.api import Ranks, Run, Sweep
from labkit.view import FIGURE_PX, FIGURE_TEXT
from labkit.view.display import Display, closing_line
from labkit.view.live_frame import live_frame, live_line, stage_line

HERE = Path(__file__).parent
FRAME_S = 0.1  # s between two frames: a browser on the same cores takes time from the run
SHARE = 0.05  # of a core, at most, for packing frames: those of long runs are costly


def script_of(*names: str) -> str:
    """Return files of JavaScript, joined: the page loads a widget's as one module."""
    return "\n".join((HERE / name).read_text("utf-8") for name in names)


class PanelAccess(anywidget.AnyWidget):
    """Shows nothing: it names the controls of the panel it stands in, and keeps the focus there."""

    _esm = script_of("panel_access.js")
    _css = HERE / "live.css"


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows, `before` faintly behind it; of several ranks the first.

    The traits are the whole state: a page that is reloaded finds its picture.
    """

    _esm = script_of(
        "dom.js", "live_frame.js", "live_pen.js", "live_draw.js", "live_pointer.js", "live.js"
    )
    _css = HERE / "live.css"

    frame = traitlets.Dict().tag(sync=True)  # see `live_frame`
    overlay = traitlets.Dict().tag(sync=True)  # the frame of the run before
    status = traitlets.Unicode("").tag(sync=True)
    # busy share, 0 to 1, as predicted: low end, value, high end; empty for none
    expected = traitlets.List().tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)  # px, at a width of 900; 0: as the style sheet says

    def __init__(self, before: Run | None = None, height: int = 0):
        super().__init__(height=height)
        self.run: Run | Ranks | None = None  # that is drawn
        self.serial = 0  # of the run: the page forgets the steps of the one before
        self.due = 0.0  # when to draw again, s
        self.show_before(before)

    def show_before(self, before: Run | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        self.overlay = {} if before is None else live_frame(before.data)

    def update(self, run: Run | Ranks, told: str = "") -> None:
        """Show what it has done by now; `told` says how far it is, or how it ended."""
        with self.hold_sync():  # one message to the browser
            if run is not self.run:
                self.run = run
                self.serial += 1
                self.frame = {}
            first = first_rank(run)
            if first is not None and first.data.steps > self.frame.get("steps", 0):
                self.frame = live_frame(first.data, self.serial)
            self.status = told or progress_line(run)

    def follow(self, running: Run | Ranks, title: str = "") -> None:
        """Show how far it is; once there are steps to be seen, ten times a second at most."""
        began = time.monotonic()
        if not self.frame or running is not self.run or began >= self.due:
            self.update(running, title + progress_line(running))
            took = time.monotonic() - began
            self.due = began + max(FRAME_S, took / SHARE)

    def _repr_mimebundle_(self, **kwargs: dict) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/plain": FIGURE_TEXT}, metadata


class RunDisplay:
    """Shows one run, or one after another, while they go on, and leaves what came out."""

    def __init__(self, before: Run | None = None):
        self.before = before
        self.run: Run | Ranks | None = None
        self.title = ""  # what is being run, where it is one of several
        self.view = LiveView(before, FIGURE_PX[before is not None])
        self.shown = Display(self.view)

    def update(self, running: Run | Ranks, title: str = "") -> None:
        """Show what has been done by now; a run before this one stays as a line, or faintly."""
        before = None if running is self.run else self.run
        if self.shown.handle is not None:
            if before is not None:
                self.view.show_before(first_rank(before))
            self.view.follow(running, title)
        else:
            if before is not None:
                self.shown.final(self.title + closing_line(before))
            self.shown.line(title + progress_line(running))
        self.run = running
        self.title = title

    def finish(self, result: Run | Ranks | Sweep) -> None:
        """Leave the figure of what came out, or the closing line of the last run."""
        figure = None
        if self.shown.handle is not None:
            figure = result.plot(self.before) if isinstance(result, Run) else result.plot()
        self.shown.final(self.title + closing_line(self.run or result), figure)
        self.view.close()


def progress_line(running: Run | Ranks) -> str:
    """Say how far a run is."""
    run = first_rank(running)
    return stage_line(running.data) if run is None else live_line(run.data)


def first_rank(running: Run | Ranks | None) -> Run | None:
    """Return what is drawn of a run: the first of several ranks, once it has begun to train."""
    if not isinstance(running, Ranks):
        return running
    return running[0] if len(running) and running[0].steps else None
