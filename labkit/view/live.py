"""The live view of runs: a small canvas in a notebook, one line of text everywhere else.

The kernel only packs float32 numbers, which the browser draws; a frame costs in proportion to the
steps that are new. In the end the canvas gives way to the final figure, as a PNG.
"""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from labkit.diagnosis.efficiency import per_sample
from labkit.process.events import now_ns
from labkit.results.ranks import Ranks
from labkit.results.result import percent
from labkit.results.run import Run
from labkit.results.step_classes import split_steps
from labkit.view import display

TEETH, POINTS = 400, 256  # on screen at the most: a tooth and its gap have two pixels each
ROW = 9  # numbers of a step: its three intervals, its wait, copy and other
AGAIN = 8  # steps split anew with the next ones: on a GPU the host's later stamps tell of them
WINDOWS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
USUAL_WINDOW_S = 2.0
FRAME_S = 0.1  # between two frames: a browser on the run's own cores takes them from it
QUIET_S = 2.0  # without a step, before the line says so


class Follower:
    """The steps of a growing run, kept up to date by `read`."""

    def __init__(self):
        self.edges = array("d", [0.0])  # s: 0, then start and end of every busy interval
        self.busy = array("d", [0.0])  # s busy until each edge
        self.lost = array("d", [0.0])  # s until each edge of which steps are missing
        self.done, self.samples = array("d"), array("q")  # s, sum
        self.stamps = array("d")  # s: six a step, as `Run.stamps`
        self.spent = array("d")  # s in each of the five classes by the end of each step
        self.next = self.zero_ns = self.last_ns = self.warmup = self.serial = 0
        self.micro = 1  # batches an update
        self.steps_asked, self.stated, self.kind = 0, "", "device"
        self.mfu_s: float | None = None  # MFU of one sample a second

    def read(self, run: Run) -> bool:
        """Take in the steps that came since the last call; return whether there were any."""
        events = run.steps_since(len(self.done))
        if events and not self.done:
            self.zero_ns, self.next = events[0]["t"][0], events[0]["i"]
            self.steps_asked, self.stated = run.pipeline.steps, run.pipeline.simulated_delay
            self.kind, found = run.machine.kind.upper(), run.peak
            self.mfu_s = found and per_sample(run) / found.flop_per_s
        for event in events:
            self._add(event)
        if events:
            self.warmup = min(run.warmup, len(self.done))  # it may have gone on since
            self.micro = run.pipeline.accumulation_steps or 1
        return bool(events)

    def _add(self, event: dict) -> None:
        asked, ready, copied, issued = event["t"]
        stamps = [asked, ready, *event.get("copy", (ready, copied)),
                  *event.get("busy", (copied, issued))]  # fmt: skip
        stamps = [(t - self.zero_ns) / 1e9 for t in stamps]
        self.stamps.extend(stamps)
        start, end = stamps[4:]
        self.done.append(end)
        start = max(start, self.edges[-1])  # edges never go back, whatever the stamps say
        end = max(start, end)
        gap = 0.0 if event["i"] == self.next else start - self.edges[-1]
        self.edges.extend((start, end))
        self.busy.extend((self.busy[-1], self.busy[-1] + end - start))
        self.lost.extend((self.lost[-1] + gap,) * 2)
        self.samples.append((self.samples[-1] if self.samples else 0) + event["n"])
        self.next, self.last_ns = event["i"] + 1, issued

    @property
    def step_s(self) -> float:
        """Mean time of a step, s; 0 before there is one."""
        return self.edges[-1] / max(1, len(self.done))

    def window(self) -> tuple[float, float]:
        """Return start and end, s, of what is shown: 2 s, unless its steps would blur or miss."""
        fits = [w for w in WINDOWS_S if 4 * self.step_s <= w <= (TEETH - 1) * self.step_s]
        width = min(fits, key=lambda w: abs(w - USUAL_WINDOW_S), default=USUAL_WINDOW_S)
        start = max(0.0, self.edges[-1] - width)
        return start, start + width

    def teeth(self) -> np.ndarray:
        """Return (n, 9) float32: the window's steps, to the last one done.

        Busy, waiting, copying from and to, s since its start; then waiting, copying, other of the
        step, ms, NaN where steps before it are missing.
        """
        count = min(TEETH, len(self.done))
        rows = np.full((count, ROW), np.nan)
        rows[:, :2] = np.array(self.edges[len(self.edges) - 2 * count :]).reshape(-1, 2)
        rows[:, 2:6] = np.array(self.stamps[-6 * count :]).reshape(-1, 6)[:, :4]
        rows[:, :6] -= self.window()[0]
        spent = 1e3 * np.diff(self.totals(count + 1), axis=0)  # of the run's first step, unknown
        rows[-len(spent) or count :, 6:] = np.column_stack([spent[:, :2], spent[:, 3:].sum(axis=1)])
        lost = np.diff(np.array(self.lost[-2 * count - 1 :]))[::2] > 0  # before each step
        rows[lost, 6:] = np.nan
        return rows[rows[:, 1] >= 0].astype(np.float32)

    def totals(self, count: int) -> np.ndarray:
        """Return (count, 5), s: the time in each class up to the end of each of the last steps."""
        known = len(self.spent) // 5
        if known < len(self.done):
            since = max(0, known - AGAIN)
            del self.spent[5 * (since + 1) :]
            self.spent = self.spent or array("d", [0.0] * 5)
            recent = np.array(self.stamps[6 * since :]).reshape(-1, 6)
            new = np.array(self.spent[-5:]) + np.cumsum(split_steps(recent), axis=0)
            self.spent.frombytes(new.tobytes())
        return np.array(self.spent[-5 * count :]).reshape(-1, 5)

    def mean_ms(self) -> np.ndarray | None:
        """Return the mean measured step by class (5,), ms, as `Run.mean_ms`; None without one."""
        steps = len(self.done) - max(1, self.warmup)
        if steps <= 0:
            return None
        last = self.totals(1)[0]
        first = 5 * (len(self.done) - 1 - steps)
        return 1e3 * (last - np.array(self.spent[first : first + 5])) / steps

    def curve(self) -> np.ndarray:
        """Return (n, 2) float32: time, s, and utilization around it, %; NaN where steps miss."""
        width = max(min(0.5, self.edges[-1] / 10), 4 * self.step_s)
        starts = np.linspace(0, self.edges[-1] - width, POINTS)
        if width <= 0 or starts[-1] < 0:
            return np.empty((0, 2), np.float32)
        # views, not copies: np.interp searches them, so its cost hardly grows with the run
        edges, busy, lost = map(np.frombuffer, (self.edges, self.busy, self.lost))
        both = np.stack([starts, starts + width])
        share = 100 * np.subtract(*np.interp(both, edges, busy)[::-1]) / width
        if self.lost[-1]:
            share[np.subtract(*np.interp(both, edges, lost)) < 0] = np.nan
        return np.column_stack([starts + width / 2, share]).astype(np.float32)

    def frame(self) -> bytes:
        """Return all that the canvas draws, float32: 14 numbers, teeth, curve; see live_draw.js."""
        start, end = self.window()
        warm_s = self.done[self.warmup - 1] if self.warmup else 0.0
        mean, teeth, curve = self.mean_ms(), self.teeth(), self.curve()
        *parts, launch, other = np.zeros(5) if mean is None else mean
        rest = start - float(np.float32(start))  # of a long run's clock, beyond 7 digits
        head = [len(teeth), len(curve), self.serial, start, rest, end - start, self.edges[-1],
                len(self.done), warm_s, self.micro, *parts, launch + other]  # fmt: skip
        return np.array(head, np.float32).tobytes() + teeth.tobytes() + curve.tobytes()

    def line(self, run: Run) -> str:
        """Say in one line how far the run is and what it has measured since its warm-up."""
        if not self.done:
            return display.stage_line(run)
        first, last = max(0, run.warmup - 1), len(self.done) - 1
        parts = [f"step {last + 1} of {self.steps_asked}"]
        wall = self.done[last] - self.done[first] if last > first else 0
        if wall > 0:
            self.warmup, mean = first + 1, self.mean_ms()
            rate = (self.samples[last] - self.samples[first]) / wall
            busy, step = mean[2] / mean.sum(), mean.sum()
            parts += [
                f"{self.kind} busy {'at most ' if self.kind == 'GPU' else ''}{busy:.0%}",
                *([f"MFU {percent(rate * self.mfu_s)}"] if self.mfu_s else []),
                f"{rate:.0f} samples/s",
                f"waiting for data {mean[0]:.1f} of {step:.1f} ms a step",
            ]
        if self.stated:
            parts.append(f"simulated delay: {self.stated}")
        quiet_s = 0 if run.recorded else (now_ns() - self.last_ns) / 1e9
        if quiet_s > max(QUIET_S, 10 * self.step_s):
            parts.append(f"no step for {quiet_s:.0f} s")
        return " · ".join(parts)


class LiveView(anywidget.AnyWidget):
    """Draws a run as it grows, `before` faintly behind it; of several ranks the first.

    The traits are the whole state: a page that is reloaded finds its picture.
    """

    _esm = "\n".join(Path(__file__).with_name(f"live{part}.js").read_text("utf-8")
                     for part in ("_draw", ""))  # fmt: skip
    _css = Path(__file__).with_name("live.css")

    frame = traitlets.Bytes(b"").tag(sync=True)  # float32; see `Follower.frame`
    overlay = traitlets.Bytes(b"").tag(sync=True)  # the frame of the run before
    overlay_name = traitlets.Unicode("run before").tag(sync=True)
    tick = traitlets.Int(0).tag(sync=True)  # frames sent
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
        self.run: Run | None = None
        self.serial = 0  # of the run: the page forgets the steps of the one before
        self.due = 0.0  # when to draw again, s
        self.show_before(before)

    def show_before(self, before: Run | Ranks | None) -> None:
        """Draw `before`'s utilization faintly behind; None removes it."""
        before, follower = first_rank(before), Follower()
        known = before is not None and follower.read(before)
        self.overlay = follower.frame() if known else b""
        self.overlay_name = (display.recorded_mark(before) if known else "") or "run before"

    def update(self, what: Run | Ranks, running: bool = True) -> None:
        """Show what it has done by now, or how it ended; costs the kernel well under 1 ms."""
        run = first_rank(what)
        with self.hold_sync():  # one message to the browser
            if run is not self.run or run is None:
                self.run, self.follower, self.serial = run, Follower(), self.serial + 1
                self.follower.serial = self.serial
                self.frame, self.device, self.badge = b"", "device", display.recorded_mark(what)
            if run is not None and run.machine.kind != "unknown":
                self.device = run.machine.kind.upper()
            if run is not None and self.follower.read(run):
                self.frame = self.follower.frame()
                self.tick += 1
            if not running:
                said = display.closing_line(what)
            else:
                said = display.stage_line(what) if run is None else self.follower.line(run)
            self.running, self.status = running, self.title + said

    def follow(self, running: Run | Ranks) -> None:
        """Do as `update`, but, once there are steps to be seen, ten times a second at most."""
        seen = self.frame and first_rank(running) is self.run
        if not seen or time.monotonic() >= self.due:
            self.update(running)
            self.due = time.monotonic() + FRAME_S

    def finish(self, ended: Run | Ranks) -> None:
        """Show all of `ended` and how it ended."""
        self.update(ended, running=False)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        data, *metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/plain": display.FIGURE_TEXT}, *metadata


class RunDisplay:
    """Shows one run or one after another while they go on, and leaves what came out."""

    def __init__(self, before: Run | None = None, height: int | None = None):
        """Draw over `before`; `height` is that of the figure in the end, px, else a run's."""
        self.before, self.run = before, None
        self.view = LiveView(before, height or display.FIGURE_PX[before is not None])
        self.shown = display.Display(self.view)

    def next(self, title: str) -> None:
        """Say what the next of several runs is; the one before stays as a line, or faintly."""
        if self.shown.live:
            self.view.show_before(self.view.run)
        elif self.run is not None:
            self.shown.final(self.view.title + display.closing_line(self.run))
        self.view.title = title

    def update(self, running: Run | Ranks) -> None:
        """Show what has been done by now."""
        self.run = running
        if self.shown.live:
            self.view.follow(running)
        elif self.shown.due:
            self.view.update(running)
            self.shown.line(self.view.status)

    def finish(self, result: Any) -> None:
        """Leave the figure of a Run, Ranks or Sweep, or the closing line of the last run."""
        if self.shown.handle is not None:
            drawn = display.StaticFigure.of(result, self.before, self.view.height)
            self.shown.final(rich=drawn)
        elif last := result if isinstance(result, (Run, Ranks)) else self.run:
            line = " ".join(filter(None, [display.recorded_mark(last), display.closing_line(last)]))
            self.shown.final(self.view.title + line)
        self.view.close()


def first_rank(running: Run | Ranks | None) -> Run | None:
    """Return what is drawn of a run: the first of several ranks, once it has begun to train."""
    if not isinstance(running, Ranks):
        return running
    return running[0] if len(running) and running[0].steps else None
