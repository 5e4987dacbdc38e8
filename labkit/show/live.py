"""The live view of runs: a small canvas in a notebook, one line of text everywhere else.

The kernel only packs float32 numbers; the browser draws them. When the run is over the canvas
gives way to the final figure as a PNG, so a saved notebook reads well where no widgets run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.show.display import (
    FIGURE_TEXT,
    Display,
    StaticFigure,
    closing_line,
    in_notebook,
    recorded_mark,
    stage_line,
    with_text,
)
from labkit.show.follow import Follower

HERE = Path(__file__).parent


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows: the device's busy intervals, and its utilization so far.

    `before` is an earlier run whose utilization is drawn faintly behind. Of several ranks the
    first is drawn. Traits are the whole state, so a page that is reloaded in the middle of a run
    finds its picture again.
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

    def show_before(self, before: Run | Ranks | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        before, follower = first_rank(before), Follower()
        known = before is not None and follower.read(before)
        self.overlay = follower.frame() if known else b""
        self.overlay_name = (recorded_mark(before) if known else "") or "run before"

    def update(self, running: Run | Ranks) -> None:
        """Show what `running` has done by now; costs the kernel well under 1 ms."""
        with self.hold_sync():  # one message to the browser
            self._take_in(running)
            self.running = True
            self.status = self.title + run_line(running, self._follower)

    def finish(self, ended: Run | Ranks) -> None:
        """Show all of `ended` and how it ended."""
        with self.hold_sync():
            self._take_in(ended)
            self.running = False
            self.status = self.title + closing_line(ended)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), FIGURE_TEXT)

    def _take_in(self, running: Run | Ranks) -> None:
        run = first_rank(running)
        if run is not self.run or run is None:
            self.run, self._follower = run, Follower()
            self.frame, self.device, self.badge = b"", "device", recorded_mark(running)
        if run is None:
            return
        if self.device == "device" and run.machine.kind != "unknown":
            self.device = run.machine.kind.upper()
        if self._follower.read(run):
            self.frame = self._follower.frame()
            self.tick += 1


class RunDisplay:
    """Shows one run or one after another while they go on, and leaves what came out."""

    def __init__(self, before: Run | None = None):
        self.before, self.title, self.run = before, "", None
        self.view = LiveView(before) if in_notebook() else None
        self.display = Display(self.view)

    def next(self, title: str) -> None:
        """Say what the next of several runs is; the one before stays as a line, or faintly."""
        if self.view is not None:
            self.view.show_before(self.view.run)
            self.view.title = title
        elif self.run is not None:
            self.display.final(self.title + closing_line(self.run))
        self.title = title

    def update(self, running: Run | Ranks) -> None:
        """Show what has been done by now."""
        if self.view is not None:
            self.view.update(running)
            return
        if running is not self.run:
            self.run, self.follower = running, Follower()
        if self.display.due:
            if first := first_rank(running):
                self.follower.read(first)
            self.display.line(self.title + run_line(running, self.follower))

    def finish(self, result: Any) -> None:
        """Leave the figure of a Run, Ranks or Sweep, or the closing line of the last run."""
        if self.view is not None:
            drawing = {} if self.before is None else {"before": self.before}
            self.display.final(rich=StaticFigure.of(result, **drawing))
            self.view.close()
        elif last := result if isinstance(result, (Run, Ranks)) else self.run:
            line = " ".join(filter(None, [recorded_mark(last), closing_line(last)]))
            self.display.final(self.title + line)


def first_rank(running: Run | Ranks | None) -> Run | None:
    """Return what is drawn of a run: the first of several ranks, once it has begun to train."""
    if not isinstance(running, Ranks):
        return running
    return running[0] if len(running) and running[0].steps else None


def run_line(running: Run | Ranks, follower: Follower) -> str:
    """Say in one line how far a run is, or each of its ranks."""
    if not isinstance(running, Ranks):
        return follower.line(running)
    if not len(running):
        return stage_line(running)
    return " · ".join(
        f"rank {rank.rank}: {f'step {rank.steps}' if rank.steps else stage_line(rank)}"
        for rank in running
    )
