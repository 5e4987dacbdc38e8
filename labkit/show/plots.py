"""The figures of runs and sweeps, under the names that `Run.plot` and `Sweep.plot` call."""

from labkit.show.run_figure import draw
from labkit.show.sweep_figure import draw_sweep

__all__ = ["draw", "draw_sweep"]
