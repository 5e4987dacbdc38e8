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
from labkit.view import FIGURE_PX, FIGURE_TEXT, display
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
    overlay_name = traitlets.Unicode("run before").tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    badge = traitlets.Unicode("").tag(sync=True)
    device = traitlets.Unicode("device").tag(sync=True)  # "CPU" or "GPU" once known
    running = traitlets.Bool(False).tag(sync=True)
    # busy share, 0 to 1, as predicted: low end, value, high end; empty for none
    expected = traitlets.List().tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)  # px, at a width of 900; 0: as the style sheet says

    def __init__(self, before: Run | None = None, height: int = 0):
        super().__init__(height=height)
        self.title = ""  # what is being run, where it is one of several
        self.what: Run | Ranks | None = None  # that is drawn
        self.serial = 0  # of the run: the page forgets the steps of the one before
        self.due = 0.0  # when to draw again, s
        self.show_before(before)

    def show_before(self, before: Run | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        self.overlay = {} if before is None else live_frame(before.data)
        self.overlay_name = (before.mark if before else None) or "run before"

    def update(self, what: Run | Ranks, ended: bool = False) -> None:
        """Show what it has done by now, or how it `ended`."""
        with self.hold_sync():  # one message to the browser
            if what is not self.what:
                self.what = what
                self.serial += 1
                self.frame = {}
                self.device = "device"
                self.badge = what.mark or ""
            first = first_rank(what)
            if first is not None:
                run = first.data
                if run.machine.kind != "unknown":
                    self.device = run.machine.kind.upper()
                if run.steps > self.frame.get("steps", 0):
                    self.frame = live_frame(run, self.serial)
            self.running = not ended
            told = display.closing_line(what) if ended else progress_line(what)
            self.status = self.title + told

    def follow(self, running: Run | Ranks) -> None:
        """Do as `update`, but, once there are steps to be seen, ten times a second at most."""
        began = time.monotonic()
        if not self.frame or running is not self.what or began >= self.due:
            self.update(running)
            took = time.monotonic() - began
            self.due = began + max(FRAME_S, took / SHARE)

    def _repr_mimebundle_(self, **kwargs: dict) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/plain": FIGURE_TEXT}, metadata


class RunDisplay:
    """Shows one run or one after another while they go on, and leaves what came out."""

    def __init__(self, before: Run | None = None):
        self.before = before
        self.run: Run | Ranks | None = None
        self.view = LiveView(before, FIGURE_PX[before is not None])
        self.shown = display.Display(self.view)

    def next(self, title: str) -> None:
        """Say what the next of several runs is; the one before stays as a line, or faintly."""
        if self.shown.live:
            self.view.show_before(first_rank(self.view.what))
        elif self.run is not None:
            self.shown.final(self.view.title + display.closing_line(self.run))
        self.view.title = title

    def update(self, running: Run | Ranks) -> None:
        """Show what has been done by now."""
        self.run = running
        if self.shown.live:
            self.view.follow(running)
        elif self.shown.due:
            self.shown.line(self.view.title + progress_line(running))

    def finish(self, result: Run | Ranks | Sweep) -> None:
        """Leave the figure of a Run, Ranks or Sweep, or the closing line of the last run."""
        last = result if self.run is None or not isinstance(result, Sweep) else self.run
        figure = display.figure_of(result, self.before) if self.shown.handle is not None else None
        self.shown.final(self.view.title + display.closing_line(last), figure)
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
