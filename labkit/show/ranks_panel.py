"""The panel of a distributed run: how many ranks, accumulation, no_sync, and who is starved."""

from __future__ import annotations

import html
from typing import Any

from labkit.results.ranks import Ranks
from labkit.show.display import StaticFigure, allow_widgets
from labkit.show.follow import Follower
from labkit.show.live import run_line
from labkit.show.measure_panel import Choice, ProgressView
from labkit.show.panel_base import Rerun
from labkit.spec import Distributed, Pipeline

CHOICES = {
    "ranks": [1, 2, 3, 4],
    "batch_size": [4, 8, 16, 32, 64, 128],
    "accumulation_steps": [1, 2, 4, 8],
    "no_sync": [False, True],
    "rank 1 waits (prep_ms)": [0, 5, 20, 50],
}


class RanksView(ProgressView):
    """How far the ranks are, as a line of text."""

    def update(self, running: Ranks) -> None:
        """Say how far each rank is."""
        text = f"<code>{html.escape(run_line(running, Follower()))}</code>"
        if text != self.value:  # each change is a message to the browser
            self.value = text

    def finish(self, ended: Ranks) -> None:
        """Say how it ended."""
        self.value = f"<code>{ended.outcome}: {ended.steps} steps</code>"


class RanksPanel(Rerun):
    """Widgets round a distributed run. `.run` is the last Ranks, `.runs` all of them."""

    terminal = "labkit.distributed()"

    def __init__(self, pipeline: Pipeline):
        self._base = pipeline
        start = {"ranks": 2, "batch_size": pipeline.batch_size, "no_sync": False}
        start |= {"accumulation_steps": pipeline.accumulation_steps}
        controls = {n: Choice(n, values, start.get(n, values[0])) for n, values in CHOICES.items()}
        super().__init__(controls, RanksView())
        self.say("Set the ranks and press Run.")

    def wanted(self) -> Distributed:
        """What Run starts; raises ValueError where the controls do not go together."""
        chosen = {name: control.value for name, control in self.controls.items()}
        ranks, no_sync = chosen.pop("ranks"), chosen.pop("no_sync")
        delay = chosen.pop("rank 1 waits (prep_ms)")
        starve = {1: {"prep_ms": delay}} if delay else {}
        if starve and self._base.dataset != "sleep":
            raise ValueError(
                "prep_ms is a knob of dataset='sleep': give the panel such a pipeline."
            )
        return Distributed(self._base.but(**chosen), ranks, no_sync, starve)

    def measured(self, run: Ranks) -> bool:
        """Whether it got far enough to have numbers."""
        return run.times is not None

    def show_result(self, run: Ranks, before: Ranks | None) -> None:
        """Show the diagnosis, the figure, and samples/s against the run before."""
        self.say(run.error or str(run.diagnose()), good=run.error is None)
        if run.times is None:
            return
        lines = [f"now: {run.numbers}"]
        if before is not None:
            ratio = run.throughput / before.throughput
            lines = [
                f"before: {before.numbers}",
                *lines,
                f"now over before: {ratio:.2f}x samples/s",
            ]
        self.compare(lines)
        self.picture(StaticFigure.drawn(run.plot()))

    def __repr__(self) -> str:
        return "labkit panel of ranks: run this cell in Jupyter to use it."


def ranks_panel(pipeline: Pipeline | None = None, **knobs: Any) -> RanksPanel:
    """Show a panel that runs a pipeline on several ranks: how many, and how they are set.

    Raises ValueError on a bad knob.
    """
    allow_widgets()
    panel = RanksPanel((pipeline or Pipeline(dataset="sleep", prep_ms=0)).but(**knobs))
    ranks_panel.last = panel
    return panel
