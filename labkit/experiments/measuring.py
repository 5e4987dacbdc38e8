"""`lk.measure`: run an experiment in its own process, show how far it is, leave its figure."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from IPython.display import HTML, display

from labkit.experiments import EXPERIMENTS
from labkit.results.launch import launch
from labkit.results.measurements import Experiment, Measurements
from labkit.show import display as live

PERIOD_S = 0.2


def measure(
    name: str, *, device: str = "auto", wait: bool = True, plot: bool = True, **params: Any
) -> Measurements:
    """Measure one thing in a process of its own and return its Measurements.

    Args:
        name: Which experiment; `labkit.experiments` lists them.
        device: As the knob of a Pipeline.
        wait: Block with a line of progress until it has ended; False returns at once.
        plot: Leave the figure in the cell when it is over (in a notebook).
        **params: Parameters of the experiment.

    Raises:
        ValueError: An unknown experiment or parameter, before anything starts.
        KeyboardInterrupt: While waiting; the experiment has been stopped first.
    """
    started = launch(Experiment(name, params, device))
    measure.last = started
    if wait:
        progress = Progress(plot and EXPERIMENTS[name].figure is not None)
        try:
            started.wait(each=progress.update)
        finally:
            progress.finish(started)
    return started


class Progress:
    """One line about an experiment: in a notebook's cell, or on a terminal's stderr."""

    def __init__(self, plot: bool):
        self.plot, self.shown, self.text = plot, 0.0, ""
        self.handle = display(HTML(""), display_id=True) if live.in_notebook() else None

    def update(self, running: Measurements) -> None:
        """Say how far it is, a few times a second."""
        if time.monotonic() - self.shown < PERIOD_S:
            return
        self.shown = time.monotonic()
        text = progress_line(running)
        if text != self.text and self.handle is not None:
            self.handle.update(HTML(f"<code>{html.escape(text)}</code>"))
        elif text != self.text and sys.stderr.isatty():
            print(f"\r{text.ljust(len(self.text))}", end="", file=sys.stderr, flush=True)
        self.text = text

    def finish(self, ended: Measurements) -> None:
        """Leave the figure, or a line that says how it ended."""
        if self.handle is None:
            print(f"{chr(13) if sys.stderr.isatty() else ''}{ended!r}", file=sys.stderr)
        elif self.plot and ended.points and not ended.error:
            self.handle.update(live.StaticFigure.drawn(ended.plot()))
        else:
            self.handle.update(live.StaticFigure(b"", 0, ended.error or "measured"))


def progress_line(running: Measurements) -> str:
    """The experiment's stage and how many points it has."""
    stage = running.stage
    total = f" {stage['done']}/{stage['total']}" if stage.get("total") else ""
    return f"{stage['name']}{total} · {len(running)} points"
