"""The live view of runs: a small canvas in a notebook, one line of text everywhere else.

The kernel only sends numbers, which the browser draws (see live_frame.py). In the end the canvas
gives way to the final figure, as a PNG.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labkit.api import Ranks, Run, Sweep
from labkit.results.ranks import RanksData
from labkit.view import FIGURE_TEXT
from labkit.view.display import Display
from labkit.view.live_frame import live_frame, live_line

HERE = Path(__file__).parent
SCRIPTS = (  # of the live view, which the page loads as one module
    "dom.js", "live_frame.js", "live_pen.js", "live_draw.js", "live_pointer.js", "live.js"
)  # fmt: skip
FRAME_S = 0.1  # s between two frames: a browser on the same cores takes time from the run
SHARE = 0.05  # of a core, at most, for packing frames: those of long runs are costly


class PanelAccess(anywidget.AnyWidget):
    """Shows nothing: it names the controls of the panel it stands in, and keeps the focus there."""

    _esm = HERE / "panel_access.js"
    _css = HERE / "live.css"


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows, `before` faintly behind it; of several ranks the first.

    The traits are the whole state: a page that is reloaded finds its picture.
    """

    _esm = "\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)
    _css = HERE / "live.css"

    frame = traitlets.Dict().tag(sync=True)  # see `live_frame`
    overlay = traitlets.Dict().tag(sync=True)  # the frame of the run before
    status = traitlets.Unicode("").tag(sync=True)
    # busy share, 0 to 1, as predicted: low end, value, high end; empty for none
    expected = traitlets.List().tag(sync=True)

    run: Run | Ranks | None = None  # that is drawn
    serial = 0  # of the run: the page forgets the steps of the one before
    due = 0.0  # when to draw again, s

    def show_before(self, before: Run | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        self.overlay = {} if before is None else live_frame(before.data)

    def update(self, run: Run | Ranks, ending: str = "") -> None:
        """Show what it has done by now, or how it ended, in the words of `ending`.

        Once there are steps to be seen, that is done ten times a second at most.
        """
        began = time.monotonic()
        if self.frame and run is self.run and not ending and began < self.due:
            return
        with self.hold_sync():  # one message to the browser
            if run is not self.run:
                self.run = run
                self.serial += 1
                self.frame = {}
            first = first_rank(run)
            if first.steps > self.frame.get("steps", 0):
                self.frame = live_frame(first, self.serial)
            self.status = ending or live_line(first)
        self.due = began + max(FRAME_S, (time.monotonic() - began) / SHARE)

    def __repr__(self) -> str:
        return FIGURE_TEXT


class RunDisplay(Display):
    """Shows one run, or one after another, while they go on, and leaves what came out."""

    def __init__(self, before: Run | None = None):
        self.before = before
        self.run: Run | Ranks | None = None
        self.view = LiveView()
        self.view.show_before(before)
        super().__init__(self.view)

    def update(self, running: Run | Ranks) -> None:
        """Show what has been done by now; outside a notebook a run before this one is a line."""
        if self.handle is not None:
            self.view.update(running)
        else:
            if self.run not in (None, running):
                self.final(repr(self.run))
            self.line(live_line(first_rank(running)))
        self.run = running

    def finish(self, result: Run | Ranks | Sweep) -> None:
        """Leave the figure of what came out, or the last run in a line."""
        figure = None
        if self.handle is not None:
            figure = result.plot(self.before) if isinstance(result, Run) else result.plot()
        self.final(repr(self.run or result), figure)
        self.view.close()


def first_rank(running: Run | Ranks) -> Any:
    """Return the data that is drawn: of several ranks that of the first, once it has begun."""
    data = running.data
    return data.first or data if isinstance(data, RanksData) else data
