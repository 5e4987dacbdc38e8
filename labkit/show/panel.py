"""The panel: knobs, Run, Stop, the live view, a verdict, and the run before for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from IPython.display import display

from labkit.knobs import check_names
from labkit.results.run import Run
from labkit.show.controls import Control
from labkit.show.display import StaticFigure, allow_widgets
from labkit.show.live import LiveView
from labkit.show.panel_base import Rerun
from labkit.show.verdict import against, verdict
from labkit.spec import KNOBS, Pipeline

# Under the panel, hidden by its own style sheet: seen only where the panel's kernel is gone
WITHOUT_KERNEL = (
    "<div class='labkit-fallback' style='opacity:.75'>A panel needs its kernel: run this cell "
    "(again) to use it.</div>"
)
USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")


class Panel(Rerun):
    """Widgets round a pipeline. `.run` is the last Run, `.runs` all of them, oldest first."""

    terminal = "labkit.run()"

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        check_names(knobs, KNOBS)
        self._base = pipeline
        self._refused = False  # whether the knobs as they stand do not go together
        controls = {name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        super().__init__(controls, LiveView())
        for control in controls.values():
            control.widget.observe(self._changed, "value")
        self.say("Set the knobs and press Run.")
        self._changed()

    @property
    def pipeline(self) -> Pipeline:
        """What Run would run; raises ValueError where the knobs do not go together."""
        return self._base.but(**{name: c.value for name, c in self.controls.items()})

    def wanted(self) -> Pipeline:
        """What Run would run; raises ValueError where the knobs do not go together."""
        return self.pipeline

    def measured(self, run: Run) -> bool:
        """Whether it got far enough to have numbers."""
        return run.utilization is not None

    def show_result(self, run: Run, before: Run | None) -> None:
        """Show the verdict, what changed since `before`, and both in one figure."""
        self.say(verdict(run), good=run.error is None)
        if run.utilization is None:
            before = None
        lines = [f"{name} was not applied: {why}." for name, why in run.not_applied.items()]
        if before is not None:
            lines.insert(0, against(run, before))
        self.compare(lines)
        self.picture(StaticFigure.of(run, **({"before": before} if before else {})))

    def _changed(self, _change: Any = None) -> None:
        try:
            _ = self.pipeline
        except ValueError as error:
            self.say(str(error), good=False)
            self._refused = True
        else:
            if self._refused:  # what it said holds no longer
                self.say("")
            self._refused = False

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        display({"text/html": WITHOUT_KERNEL, "text/plain": ""}, raw=True)

    def __repr__(self) -> str:
        return f"labkit panel for {', '.join(self.controls)}: run this cell in Jupyter to use it."


def panel(
    pipeline: Pipeline | None = None, knobs: Sequence[str] = USUAL_KNOBS, **settings: Any
) -> Panel:
    """Return widgets to set `knobs` of a pipeline, run it, watch it and compare it.

    Args:
        pipeline: Where the knobs start from; the default pipeline where it is left out.
        knobs: Names of the knobs to show; each is a knob of `Pipeline`.
        **settings: Changes to `pipeline`, as in `pipeline.but(...)`.

    Raises:
        ValueError: A name that is no knob, or a value that is not allowed.
    """
    allow_widgets()
    return Panel((pipeline or Pipeline()).but(**settings), knobs)
