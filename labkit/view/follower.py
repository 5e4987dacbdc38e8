"""The steps of a growing run, packed for the live view: float32 numbers that the browser draws.

A frame costs in proportion to the steps that are new.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from labkit.diagnosis.efficiency import per_sample
from labkit.process.events import now_ns
from labkit.results.result import percent
from labkit.results.run import Run
from labkit.results.step_classes import split_steps
from labkit.spec import KNOBS
from labkit.view.display import stage_line

TEETH = 400  # on screen at the most: a tooth and its gap have two pixels each
POINTS = 256
ROW = 9  # numbers of a step: its three intervals, its wait, copy and other
STAMPS = 6  # of a step, as `Run.stamps`
CLASSES = 5  # of `split_steps`
AGAIN = 8  # steps split anew with the next ones: on a GPU the host's later stamps tell of them
WINDOWS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
USUAL_WINDOW_S = 2.0
QUIET_S = 2.0  # without a step, before the line says so


class Follower:
    """The steps of a growing run, kept up to date by `read`."""

    def __init__(self, serial: int = 0):
        self.serial = serial  # of the run, for the page
        self.edges = array("d", [0.0])  # s: 0, then start and end of every busy interval
        self.busy = array("d", [0.0])  # s busy until each edge
        self.lost = array("d", [0.0])  # s until each edge of which steps are missing
        self.done = array("d")  # s
        self.samples = array("q", [0])  # sum, before each step and after the last
        self.stamps = array("d")  # s: six a step, as `Run.stamps`
        self.spent = array("d", [0.0] * CLASSES)  # s in each class before each step
        self.next_step = 0
        self.zero_ns = 0
        self.last_ns = 0
        self.warmup = 0
        self.micro = 1  # batches an update
        self.steps_asked: int | None = None
        self.delays = ""
        self.kind = "device"
        self.mfu_s: float | None = None  # MFU of one sample a second

    def read(self, run: Run) -> bool:
        """Take in the steps that came since the last call; return whether there were any."""
        events = run.steps_since(len(self.done))
        if not events:
            return False
        if not self.done:
            self._begin(run, events[0])
        for event in events:
            self._add(event)
        self.warmup = min(run.warmup, len(self.done))  # it may have gone on since
        self.micro = run.pipeline.accumulation_steps or 1
        return True

    def _begin(self, run: Run, first: dict[str, Any]) -> None:
        self.zero_ns = first["t"][0]
        self.next_step = first["i"]
        steps = run.pipeline.to_dict()["steps"]
        self.steps_asked = None if steps == KNOBS["steps"].high else steps  # the clock ends it
        self.delays = run.pipeline.simulated_delay
        self.kind = run.machine.kind.upper()
        needed = per_sample(run)
        if run.peak and needed:
            self.mfu_s = needed / run.peak.flop_per_s

    def _add(self, event: dict[str, Any]) -> None:
        asked, ready, copied, issued = event["t"]
        copy = event.get("copy", (ready, copied))
        busy = event.get("busy", (copied, issued))
        stamps = [(stamp - self.zero_ns) / 1e9 for stamp in (asked, ready, *copy, *busy)]
        self.stamps.extend(stamps)
        self.done.append(stamps[5])
        start = max(stamps[4], self.edges[-1])  # edges never go back, whatever the stamps say
        end = max(start, stamps[5])
        gap = 0.0 if event["i"] == self.next_step else start - self.edges[-1]
        self.edges.extend((start, end))
        self.busy.extend((self.busy[-1], self.busy[-1] + end - start))
        self.lost.extend((self.lost[-1] + gap,) * 2)
        self.samples.append(self.samples[-1] + event["n"])
        self.next_step = event["i"] + 1
        self.last_ns = issued

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
        recent = np.array(self.stamps[-STAMPS * count :])
        rows[:, 2:6] = recent.reshape(-1, STAMPS)[:, :4]
        rows[:, :6] -= self.window()[0]
        spent_ms = 1e3 * np.diff(self.totals(count + 1), axis=0)  # of the first step, unknown
        known = rows[len(rows) - len(spent_ms) :]
        known[:, 6:8] = spent_ms[:, :2]
        known[:, 8] = spent_ms[:, 3:].sum(axis=1)
        lost = np.diff(np.array(self.lost[-2 * count - 1 :]))[::2] > 0  # before each step
        rows[lost, 6:] = np.nan
        return rows[rows[:, 1] >= 0].astype(np.float32)

    def totals(self, count: int) -> np.ndarray:
        """Return (count, 5), s: the time in each class up to the end of each of the last steps."""
        known = len(self.spent) // CLASSES
        if known < len(self.done):
            since = max(0, known - AGAIN)
            del self.spent[CLASSES * (since + 1) :]
            recent = np.array(self.stamps[STAMPS * since :]).reshape(-1, STAMPS)
            before = np.array(self.spent[-CLASSES:])
            new = before + np.cumsum(split_steps(recent), axis=0)
            self.spent.frombytes(new.tobytes())
        return np.array(self.spent[-CLASSES * count :]).reshape(-1, CLASSES)

    def mean_ms(self, first: int | None = None) -> np.ndarray | None:
        """Return the mean step by class (5,), ms, from the end of the warm-up on; None before.

        With `first`, from the end of so many steps on.
        """
        since = max(1, self.warmup if first is None else first)
        steps = len(self.done) - since
        if steps <= 0:
            return None
        last = self.totals(1)[0]
        start = CLASSES * (since - 1)
        return 1e3 * (last - np.array(self.spent[start : start + CLASSES])) / steps

    def curve(self) -> np.ndarray:
        """Return (n, 2) float32: time, s, and utilization around it, %; NaN where steps miss."""
        width = max(min(0.5, self.edges[-1] / 10), 4 * self.step_s)
        starts = np.linspace(0, self.edges[-1] - width, POINTS)
        if width <= 0 or starts[-1] < 0:
            return np.empty((0, 2), np.float32)
        # views, not copies: np.interp searches them, so its cost hardly grows with the run
        edges = np.frombuffer(self.edges)
        busy = np.frombuffer(self.busy)
        share = 100 * (np.interp(starts + width, edges, busy) - np.interp(starts, edges, busy))
        share /= width
        if self.lost[-1]:
            lost = np.frombuffer(self.lost)
            is_lost = np.interp(starts + width, edges, lost) > np.interp(starts, edges, lost)
            share[is_lost] = np.nan
        return np.column_stack([starts + width / 2, share]).astype(np.float32)

    def frame(self) -> bytes:
        """Return all that the canvas draws, float32: 14 numbers, teeth, curve; see live_draw.js."""
        start, end = self.window()
        mean = self.mean_ms()
        teeth = self.teeth()
        curve = self.curve()
        wait, copy, compute, launch, other = np.zeros(CLASSES) if mean is None else mean
        head = [
            len(teeth),
            len(curve),
            self.serial,
            start,
            start - float(np.float32(start)),  # of a long run's clock, beyond 7 digits
            end - start,
            self.edges[-1],
            len(self.done),
            self.done[self.warmup - 1] if self.warmup else 0.0,
            self.micro,
            wait,
            copy,
            compute,
            launch + other,
        ]
        return np.array(head, np.float32).tobytes() + teeth.tobytes() + curve.tobytes()

    def line(self, run: Run) -> str:
        """Say in one line how far the run is and what it has measured since its warm-up."""
        if not self.done:
            return stage_line(run)
        first = max(1, run.warmup)
        done = len(self.done)
        parts = [f"step {done} of {self.steps_asked}" if self.steps_asked else f"step {done}"]
        mean = self.mean_ms(first)
        wall = self.done[-1] - self.done[first - 1] if done > first else 0.0
        if mean is not None and wall > 0:
            rate = (self.samples[-1] - self.samples[first]) / wall
            step_ms = mean.sum()
            at_most = "at most " if self.kind == "GPU" else ""
            parts.append(f"{self.kind} busy {at_most}{mean[2] / step_ms:.0%}")
            if self.mfu_s:
                parts.append(f"MFU {percent(rate * self.mfu_s)}")
            parts.append(f"{rate:.0f} samples/s")
            parts.append(f"waiting for data {mean[0]:.1f} of {step_ms:.1f} ms a step")
        if self.delays:
            parts.append(f"simulated delay: {self.delays}")
        quiet_s = 0 if run.recorded else (now_ns() - self.last_ns) / 1e9
        if quiet_s > max(QUIET_S, 10 * self.step_s):
            parts.append(f"no step for {quiet_s:.0f} s")
        return " · ".join(parts)
