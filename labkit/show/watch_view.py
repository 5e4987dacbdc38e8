"""What a watched loop shows while it runs: a line of text, or the live canvas in a notebook.

Both are fed from sums of bounded size, never from the log, and at most twice a second: they run in
the training process itself, where a canvas frame costs about a millisecond.
"""

from __future__ import annotations

import html
import shutil
import sys
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.bench.watch import Tally

AT_MOST = {"gpu": "at most "}  # gaps between kernels count as busy there
BAR = 8  # characters
POINTS = 512  # of the utilization curve; then pairs are merged
WINDOW_S = 2.0


def verdict_so_far(tally: Tally, kind: str) -> str:
    """Name the bottleneck as far as sums tell; "" while there are too few steps."""
    if tally.steps < limits.MIN_STEPS or not tally.wall:
        return ""
    waiting = tally.wait / tally.wall >= limits.WORTH_NAMING["input"]
    fed = "not input" if kind == "gpu" else "compute"  # a GPU's gaps between kernels do not show
    return f"so far: {'input' if waiting else fed}"


def line(watch: Any, done: int) -> str:
    """Say in one line how far a pass is (`done` batches) and what has been measured."""
    recorder, tally = watch._recorder, watch._recorder.tally
    head = f"{watch.title}: epoch" if watch.title else "epoch"
    if recorder.length:
        filled = round(BAR * min(1.0, done / recorder.length))
        bar = f"{'█' * filled}{'░' * (BAR - filled)} {done}/{recorder.length}"
    else:
        bar = f"step {done}"
    parts = [f"{head} {recorder.epoch + 1} {bar}"]
    if tally.wall:
        busy, wait = tally.busy / tally.wall, tally.wait / tally.wall
        parts += [
            f"{tally.samples / tally.wall * 1e9:,.0f} {recorder.unit}/s",
            f"{recorder.kind.upper()} busy {AT_MOST.get(recorder.kind, '')}{busy:.0%}, "
            f"waiting for data {wait:.0%}",
            verdict_so_far(tally, recorder.kind),
        ]
    return " · ".join(filter(None, parts))


class TextView:
    """One line on stderr, rewritten in place on a terminal; a line a pass elsewhere."""

    def __init__(self):
        self.first, self.epoch, self.width = 0, -1, 0

    def update(self, watch: Any, over: bool) -> None:
        """Write where the loop is."""
        recorder = watch._recorder
        if recorder.epoch != self.epoch:
            self.epoch, self.first = recorder.epoch, recorder.first_step
        if over and recorder.next == recorder.first_step and recorder.how == "exhausted":
            self._write(EMPTY, "\n")
        elif over or sys.stderr.isatty():
            self._write(line(watch, recorder.next - self.first), "\n" if over else "")

    def close(self, watch: Any) -> None:
        """Write the run and its diagnosis."""
        run = watch.run
        self._write(repr(run), "\n")
        if run.utilization is not None:
            diagnosis = run.diagnose()
            self._write(" ".join([str(diagnosis), *diagnosis.notes]), "\n")

    def _write(self, text: str, end: str) -> None:
        start = ""
        if sys.stderr.isatty():
            start = "\r"
            if not end:  # a line that wraps could not be written over
                text = text[: shutil.get_terminal_size().columns - 1]
        print(start + text.ljust(self.width), end=end, file=sys.stderr, flush=True)
        self.width = 0 if end else len(text)


EMPTY = (
    "watch: the loader gave no batch. If it is an iterator or a generator, it has been used up: "
    "make a new one for each pass, or watch the loader itself, not iter(loader)."
)


class Curve:
    """Busy share over time, a point for each update, of bounded length."""

    def __init__(self):
        self.points: list[tuple[float, float]] = []  # s, %
        self.wall = self.busy = self.each = self.skipped = 0

    def add(self, at_s: float, tally: Tally) -> None:
        """Add what has been measured since the last point."""
        self.each = self.each or 1
        if tally.wall < self.wall:  # the warm-up was forgotten
            self.wall = self.busy = 0
        self.skipped += 1
        if self.skipped < self.each or tally.wall <= self.wall:
            return
        share = 100 * (tally.busy - self.busy) / (tally.wall - self.wall)
        self.points.append((at_s, share))
        self.wall, self.busy, self.skipped = tally.wall, tally.busy, 0
        if len(self.points) > POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            self.points = [(b[0], (a[1] + b[1]) / 2) for a, b in pairs]
            self.each *= 2


class CanvasView:
    """The live canvas, then the figure and the diagnosis, in the output of a cell."""

    def __init__(self):
        from IPython.display import display

        from labkit.show import live
        from labkit.show.display import allow_widgets

        allow_widgets()
        self.view, self.curve, self.zero_ns = live.LiveView(), Curve(), None
        self.handle = display(self.view, display_id=True)

    def update(self, watch: Any, over: bool) -> None:
        """Draw the last steps and the curve so far."""
        recorder = watch._recorder
        empty = over and recorder.next == recorder.first_step and recorder.how == "exhausted"
        with self.view.hold_sync():
            if teeth := list(recorder.tally.teeth):
                self.view.frame = self._frame(np.array(teeth), recorder.tally)
                self.view.device = recorder.kind.upper()
                self.view.tick += 1
            self.view.running = not over
            done = recorder.next - recorder.first_step
            self.view.status = EMPTY if empty else line(watch, done)

    def _frame(self, teeth: np.ndarray, tally: Tally) -> bytes:
        from labkit.show.follow import pack

        if self.zero_ns is None:
            self.zero_ns = teeth[0, 0]
        teeth = (teeth - self.zero_ns) / 1e9  # (n, 2) s
        now = float(teeth[-1, 1])
        # a window that the kept teeth fill, so that none is missing from it
        start = max(0.0, now - WINDOW_S, float(teeth[0, 0]) if len(teeth) > 100 else 0.0)
        self.curve.add(now, tally)
        shown = teeth[teeth[:, 1] > start] - start
        points = np.array(self.curve.points, np.float32).reshape(-1, 2)
        return pack(shown.astype(np.float32), points, start, max(now, start + 0.01), now)

    def close(self, watch: Any) -> None:
        """Put the final figure and the diagnosis where the canvas was."""
        from IPython.display import HTML, display

        from labkit.show.display import StaticFigure

        run = watch.run
        if run.utilization is None:
            self.handle.update(HTML(f"<pre>{html.escape(repr(run))}</pre>"))
        else:
            self.handle.update(StaticFigure.of(run))
            display(run.diagnose())
        self.view.close()


def view_for(_watch: Any) -> TextView | CanvasView:
    """Return what fits: a canvas in a notebook, a line of text elsewhere."""
    if "ipykernel" in sys.modules:
        from labkit.show.display import in_notebook

        if in_notebook():
            return CanvasView()
    return TextView()
