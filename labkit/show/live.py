"""The live view of runs: a small canvas in a notebook, one line of text everywhere else.

The kernel keeps up with a growing run (`Follower`) and only packs float32 numbers; the browser
draws them. Every call costs in proportion to the steps that are new, never to those that were there
before, so a run of a million steps is as cheap to follow as one of eighty. When the run is over the
canvas gives way to the final figure as a PNG, so a saved notebook reads well where no widgets run.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from statistics import median
from typing import Any

import anywidget
import numpy as np
import traitlets

from labkit.process.events import now_ns
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

HERE = Path(__file__).parent
TEETH = 400  # blocks on screen at the most: two pixels each in a notebook cell
WINDOWS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
USUAL_WINDOW_S = 2.0
QUIET_S = 2.0  # without a step, before the line says so
RECENT = 256  # steps behind the live median of the wait


class BusyShare:
    """Busy share against time on a grid that coarsens as time goes on: at most `BINS` points."""

    BINS = 512

    def __init__(self):
        self.bin_s, self.now, self.total, self.missed = 0.02, 0.0, 0.0, 0.0
        self.busy, self.unknown = [0.0], [0.0]  # seconds so far, at every edge of the grid

    def add(self, start: float, end: float, known: bool = True) -> None:
        """Add a busy interval, s; `known` says whether the time before it was seen to be idle."""
        self._advance(start, busy=0, unknown=0 if known else 1)
        self._advance(end, busy=1, unknown=0)

    def _advance(self, to: float, busy: int, unknown: int) -> None:
        while (edge := len(self.busy) * self.bin_s) <= to:
            self.busy.append(self.total + busy * (edge - self.now))
            self.unknown.append(self.missed + unknown * (edge - self.now))
            if len(self.busy) > self.BINS:
                self.bin_s *= 2
                self.busy, self.unknown = self.busy[::2], self.unknown[::2]
        if to > self.now:
            self.total += busy * (to - self.now)
            self.missed += unknown * (to - self.now)
            self.now = to

    def curve(self, window_s: float) -> np.ndarray:
        """Return (n, 2) float32: time, s, and busy share of the `window_s` around it, %.

        NaN, a gap, where steps are missing from the record.
        """
        width = max(1, round(window_s / self.bin_s))
        if len(self.busy) <= width:
            return np.empty((0, 2), np.float32)
        busy, unknown = np.array(self.busy), np.array(self.unknown)
        share = 100 * (busy[width:] - busy[:-width]) / (width * self.bin_s)
        share[unknown[width:] > unknown[:-width]] = np.nan
        curve = np.empty((len(share), 2), np.float32)
        curve[:, 0] = (np.arange(len(share)) + width / 2) * self.bin_s
        curve[:, 1] = share
        return curve


class Follower:
    """The steps of a growing run, kept up to date by `read`."""

    def __init__(self):
        self.share = BusyShare()
        self.starts, self.ends = array("d"), array("d")  # busy, s; NaN where steps are missing
        self.done = array("d")  # when each step ended, s
        self.busy, self.samples = array("d"), array("q")  # sums up to each step
        self.waits = array("d")  # ms
        self.next = self.zero_ns = self.last_ns = 0
        self.steps_asked, self.stated, self.kind = 0, "", "device"

    def read(self, run: Run) -> bool:
        """Take in the steps that came since the last call; return whether there were any."""
        events = run.steps_since(len(self.done))
        if events and not self.done:
            self.zero_ns = events[0]["t"][0]
            self.next = events[0]["i"]
            pipeline = run.pipeline
            self.steps_asked, self.stated = pipeline.steps, pipeline.simulated_delay
            self.kind = run.machine.kind.upper()
        for event in events:
            self._add(event)
        return bool(events)

    def _add(self, event: dict) -> None:
        asked, ready, copied, issued = event["t"]
        start, end = event.get("busy", (copied, issued))
        start, end = (start - self.zero_ns) / 1e9, (end - self.zero_ns) / 1e9
        known = event["i"] == self.next
        if not known:
            self.starts.append(np.nan)
            self.ends.append(np.nan)
        self.starts.append(start)
        self.ends.append(end)
        self.share.add(start, end, known)
        self.done.append(end)
        self.busy.append(self.busy[-1] + end - start if self.busy else end - start)
        self.samples.append((self.samples[-1] if self.samples else 0) + event["n"])
        self.waits.append((ready - asked) / 1e6)
        self.next, self.last_ns = event["i"] + 1, issued

    # -- the picture -----------------------------------------------------------------------------

    @property
    def span_s(self) -> float:
        """Seconds from the first batch asked for to the last busy moment known."""
        return self.share.now

    @property
    def step_s(self) -> float:
        """Mean time of a step, s; 0 before there is one."""
        return self.span_s / len(self.done) if self.done else 0.0

    def window(self) -> tuple[float, float]:
        """Return start and end, s, of the stretch whose teeth are shown.

        2 s, unless steps are so short that they would blur, or so long that none would be seen.
        """
        fits = [w for w in WINDOWS_S if 4 * self.step_s <= w <= (TEETH - 1) * self.step_s]
        width = min(fits, key=lambda w: abs(w - USUAL_WINDOW_S), default=USUAL_WINDOW_S)
        start = max(0.0, self.span_s - width)
        return start, start + width

    def teeth(self) -> np.ndarray:
        """Return (n, 2) float32: busy intervals in the window, s since its start; NaN = a gap."""
        start, _ = self.window()
        recent = np.array([self.starts[-TEETH:], self.ends[-TEETH:]]).T.reshape(-1, 2) - start
        return recent[~(recent[:, 1] < 0)].astype(np.float32)

    def curve(self) -> np.ndarray:
        """Return (n, 2) float32: time, s, and utilization around it, %, over the whole run."""
        return self.share.curve(max(min(0.5, self.span_s / 10), 4 * self.step_s))

    def frame(self) -> bytes:
        """Return everything the canvas draws, as float32; see `pack`."""
        return pack(self.teeth(), self.curve(), *self.window(), self.span_s)

    # -- the line --------------------------------------------------------------------------------

    def line(self, run: Run) -> str:
        """Say in one line how far the run is and what it has measured since its warm-up."""
        if not self.done:
            return stage_line(run)
        first, last = max(0, run.warmup - 1), len(self.done) - 1
        parts = [f"step {last + 1} of {self.steps_asked}"]
        wall = self.done[last] - self.done[first]
        waits = self.waits[max(first + 1, last - RECENT) :]
        if wall > 0:
            busy = (self.busy[last] - self.busy[first]) / wall
            parts += [
                f"{self.kind} busy {'at most ' if self.kind == 'GPU' else ''}{busy:.0%}",
                f"{(self.samples[last] - self.samples[first]) / wall:.0f} samples/s",
                f"waiting for data {median(waits):.1f} ms a step",
            ]
        if self.stated:
            parts.append(f"simulated delay: {self.stated}")
        quiet_s = 0 if run.recorded else (now_ns() - self.last_ns) / 1e9
        if quiet_s > max(QUIET_S, 10 * self.step_s):
            parts.append(f"no step for {quiet_s:.0f} s")
        return " · ".join(parts)


def pack(teeth: np.ndarray, curve: np.ndarray, start: float, end: float, span: float) -> bytes:
    """Pack a frame: numbers of teeth and of points, window start and end, span; then both."""
    head = np.array([len(teeth), len(curve), start, end, span], np.float32)
    return head.tobytes() + teeth.tobytes() + curve.tobytes()


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows: the device's busy intervals, and its utilization so far.

    `before` is an earlier run whose utilization is drawn faintly behind. Of several ranks the
    first is drawn. Traits are the whole state, so a page that is reloaded in the middle of a run
    finds its picture again.
    """

    _esm = HERE / "live.js"
    _css = HERE / "live.css"

    frame = traitlets.Bytes(b"").tag(sync=True)  # float32; see `pack`
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
