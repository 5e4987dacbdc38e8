"""Replays: a recorded run through the live view and the panel, always marked RECORDED."""

from __future__ import annotations

import os
from typing import Any

import ipywidgets as widgets

from labkit.results.recordings import Recordings, recorded
from labkit.results.replay import replay as play
from labkit.results.run import Run
from labkit.show.display import StaticFigure, allow_widgets
from labkit.show.live import LiveView
from labkit.show.panel_base import Rerun
from labkit.show.verdict import against, verdict

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class Chooser(widgets.VBox):
    """A name above a drop-down; `value` is what was chosen."""

    def __init__(self, name: str, options: list[tuple[str, Any]], value: Any):
        layout = widgets.Layout(width="auto", margin="0 0 0 8px")
        self.widget = widgets.Dropdown(options=options, value=value, layout=layout)
        super().__init__([widgets.HTML(f"<b>{name}</b>"), self.widget])
        self.layout = widgets.Layout(min_width="0", overflow="hidden")

    @property
    def value(self) -> Any:
        """What was chosen."""
        return self.widget.value


class ReplayPanel(Rerun):
    """The panel of recorded runs: choose one and a speed, play it, see it diagnosed."""

    terminal = "labkit.replay()"

    def __init__(self, recordings: Recordings):
        self.recordings = recordings
        names = [(f"{r.name} · {r.title} · {r.hardware}", i) for i, r in enumerate(recordings)]
        speeds = [(f"{speed:g}x", speed) for speed in SPEEDS]
        controls = {
            "recorded run": Chooser("recorded run", names, 0),
            "speed": Chooser("speed", speeds, 1.0),
        }
        super().__init__(controls, LiveView())
        self.run_button.description = "Play"
        self.say("Nothing here is measured: these runs were RECORDED. Choose one and press Play.")

    def begin(self) -> Run:
        """Start the replay that the controls ask for."""
        chosen = self.recordings[self.controls["recorded run"].value]
        return play(chosen.path, self.controls["speed"].value)

    def measured(self, run: Run) -> bool:
        """Whether it got far enough to have numbers."""
        return run.utilization is not None

    def show_result(self, run: Run, before: Run | None) -> None:
        """Show the verdict, what differs from `before`, and both in one figure."""
        self.say(f"{run.mark}: {verdict(run)}", good=run.error is None)
        if run.utilization is None:
            before = None
        self.compare([] if before is None else [against(run, before)])
        self.picture(StaticFigure.of(run, **({"before": before} if before else {})))

    def __repr__(self) -> str:
        return f"labkit panel of {len(self.recordings)} recorded runs: run this cell in Jupyter."


def replay_panel(*names: str, folder: str | os.PathLike | None = None) -> ReplayPanel:
    """Return widgets to choose a recorded run, play it at a chosen speed and see it diagnosed.

    Args:
        *names: The records to choose from; all runs with steps where left out.
        folder: What `labkit record --out FOLDER` wrote; None: what comes with the package.

    Raises:
        ValueError: A name that is not there, or no recorded run at all.
    """
    listed = recorded(folder=folder)
    if unknown := [name for name in names if name not in {r.name for r in listed}]:
        known = ", ".join(dict.fromkeys(r.name for r in listed)) or "none"
        raise ValueError(f"{unknown[0]!r}: there is no such record. There are: {known}.")
    chosen = [r for r in listed if not r.experiment and (not names or r.name in names)]
    if not chosen:
        raise ValueError("there is no recorded run to play.")
    allow_widgets()
    return ReplayPanel(Recordings(chosen))
