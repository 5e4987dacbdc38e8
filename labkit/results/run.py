"""The result of a run: a `Run` reads one event log and derives every number from it when asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.results.event_log import EventLogResult, derived, every, fact, of_one_moment
from labkit.results.record import Watched, pipeline_of
from labkit.results.result import noise
from labkit.results.sweep import Comparison
from labkit.results.timeline import Timeline, unevenness
from labkit.spec import NOISY, Pipeline
from labkit.wiring import above

HIDES = 0.05  # of wall time: fewer gaps than that inside the busy time need no word
BLOCKS = 5  # throughput is compared between so many stretches of the run to judge its noise
# of a run, as `to_dict` and `--json` list them
NUMBERS = (
    "id", "utc", "recorded", "outcome", "error", "steps", "samples", "warmup", "utilization",
    "throughput", "step_ms", "wait_ms", "copy_ms", "compute_ms", "spread", "noisy", "compile_s",
    "peak_memory_gib", "energy_j", "not_applied", "busy_at_least", "utilization_is_upper_bound",
)  # fmt: skip


class Run(EventLogResult):
    """One measured run, live or recorded.

    Statistics leave out the warm-up: the first steps, and those whose data was prefetched before
    the clock was running. Medians are over the steps that are left.
    """

    SERIES = ("step", "telemetry", "items", "epoch")
    _clock: Timeline | None = None

    def _take(self, event: dict[str, Any]) -> None:
        super()._take(event)
        if event["event"] == "epoch":  # a watched loop goes on: it has not ended after all
            for name in ("done", "error", "end"):
                self._kept.pop(name, None)

    # -- what it was -----------------------------------------------------------------------------

    @property
    def asked(self) -> Pipeline | Watched:
        """The pipeline that was asked for; of a watched loop, what is known of it."""
        return self._pipeline("spec")

    @property
    def pipeline(self) -> Pipeline | Watched:
        """The pipeline that ran, with every automatic value filled in."""
        return self._pipeline("job" if "job" in self._last else "spec")

    def _pipeline(self, event: str) -> Pipeline | Watched:
        knobs = self._last.get(event, {}).get("pipeline", {})
        return Watched(self.watched, knobs) if self.watched else pipeline_of(knobs)

    @property
    def watched(self) -> str | None:
        """The type of the loader of a loop that `lk.watch` looked at; None for our own runs."""
        facts = self._fact("spec", "watched")
        return str(facts.get("loader", "loader")) if isinstance(facts, dict) else None

    @property
    def unit(self) -> str:
        """Unit of `samples`: "samples", or "batches" of a watched loop that hides its own."""
        return "batches" if self._fact("job", "unit") == "batches" else "samples"

    @property
    def not_applied(self) -> dict[str, str]:
        """{knob: why it could not act on this device}."""
        return dict(self._fact("job", "not_applied", {}))

    @property
    def steps(self) -> int:
        """Steps done, warm-up included."""
        return len(self._events("step"))

    def steps_since(self, start: int) -> list[dict[str, Any]]:
        """Return the step events from the `start`th on: what a reader has not seen yet."""
        return self._events("step")[start:]

    @property
    def samples(self) -> int:
        """Samples trained on, warm-up included."""
        return sum(step["n"] for step in self._events("step"))

    @property
    def warmup(self) -> int:
        """Steps left out of the statistics: the prefetched ones, but never over a third."""
        wanted = self._fact("begin", "warmup", 0)
        return max(1, min(wanted, self.steps // 3)) if self.steps else 0

    # -- the timeline, in seconds since the first batch was asked for ----------------------------

    @of_one_moment
    def _timeline(self) -> Timeline:
        steps, epochs = self._series["step"], self._series["epoch"]
        clock = self._clock
        if clock is None or clock.size != (len(steps), len(epochs)):
            clock = self._clock = Timeline(steps, [event["step"] for event in epochs])
        return clock

    @property
    def stamps(self) -> np.ndarray:
        """Per step (steps, 6): asked, ready, copy start, copy end, busy start, busy end; s.

        On a CPU copy and compute are what the host did; on a GPU they are the device's own.
        """
        return self._timeline().stamps

    @property
    def busy(self) -> np.ndarray:
        """The device's busy intervals (steps, 2): start and end, s."""
        return self.stamps[:, 4:6]

    @property
    def issued(self) -> np.ndarray:
        """Time at which the host had issued each step (steps,), s; early on a fed GPU."""
        return self._timeline().issued

    def seconds(self, t_ns: int) -> float:
        """Return a stamp of this run's clock in s; NaN between passes over a watched loader."""
        return self._timeline().seconds(t_ns) if self.steps else 0.0

    def timeline(self, bins: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Return utilization over the whole run, in equal stretches: (bins,) s, (bins,) 0 to 1."""
        return self._timeline().utilization(bins)

    @property
    def thread_s(self) -> np.ndarray:
        """Per step (steps,): CPU time of the thread that ran the compute, s; NaN where not read.

        On a CPU it falls short of the compute's wall time where others had the core.
        """
        return np.array([step.get("cpu", np.nan) for step in self._events("step")], float) / 1e9

    telemetry = every("telemetry", "The instruments' samples, each with `t_ns`; gaps are None.")
    item_events = every("items", "What the items cost to prepare, as the loader's processes wrote.")
    xray_facts = fact("xray", None, "What a few profiled steps were made of; None if not looked.")
    no_xray = fact("no_xray", "why", "Why there is no x-ray; None where there is, or not yet.")

    # -- statistics ------------------------------------------------------------------------------

    def _measured(self) -> np.ndarray | None:
        """The stamps behind the warm-up, the last warm-up step first; None where too few."""
        return self.stamps[self.warmup - 1 :] if self.steps >= 2 else None

    @property
    def utilization(self) -> float | None:
        """Device-busy share of wall time, 0 to 1, warm-up excluded; None before two steps.

        It says that the device had work, not that the work used all of it: a one-thread kernel
        counts as busy. On a CPU, busy means forward, backward and optimizer. On a GPU it lasts from
        a step's first kernel to its last, so gaps between kernels, in which the device waits for
        the host's next launch, count too: an upper bound. `busy_at_least` is the lower one, and an
        x-ray sees the gaps.
        """
        stamps = self._measured()
        if stamps is None:
            return None
        wall = stamps[-1, 5] - stamps[0, 5]
        return float(np.diff(stamps[1:, 4:6]).sum() / wall) if wall > 0 else None

    @derived
    def busy_at_least(self) -> float | None:
        """Share of wall time (0 to 1) in which the device certainly worked, warm-up excluded.

        On a GPU: what was left of each step when the host had issued all of it. That much was
        queued, so no gap in it was a wait for the host. A small share says nothing: a loop that
        launches too slowly has it, and one that waits for every step. On a CPU: the utilization.
        """
        stamps = self._measured()
        if stamps is None or self.utilization is None or self.machine.kind != "gpu":
            return self.utilization
        start, end = stamps[1:, 4:6].T
        queued = end - np.clip(self.issued[self.warmup :], start, end)
        return float(queued.sum() / (stamps[-1, 5] - stamps[0, 5]))

    @derived
    def utilization_is_upper_bound(self) -> bool:
        """True where gaps between kernels may hide in `utilization`, unlike in `busy_at_least`."""
        if self.utilization is None or self.machine.kind != "gpu" or self.xray_facts is not None:
            return False
        return self.utilization - self.busy_at_least > HIDES

    @property
    def busy_text(self) -> str:
        """The utilization in words: "17%", "at most 93%" where it is an upper bound, "unknown"."""
        if self.utilization is None:
            return "unknown"
        return f"{'at most ' if self.utilization_is_upper_bound else ''}{self.utilization:.0%}"

    @derived
    def throughput(self) -> float | None:
        """Samples per second of wall time, warm-up excluded."""
        stamps = self._measured()
        if stamps is None or stamps[-1, 5] <= stamps[0, 5]:
            return None
        samples = sum(step["n"] for step in self.steps_since(self.warmup))
        return samples / float(stamps[-1, 5] - stamps[0, 5])

    @property
    def step_ms(self) -> float | None:
        """Median time from one step's end on the device to the next, ms."""
        stamps = self._measured()
        return None if stamps is None else float(np.median(np.diff(stamps[:, 5])) * 1e3)

    @property
    def wait_ms(self) -> float | None:
        """Median time the loop waited for the next batch, ms."""
        return self._median_ms(0, 1)

    @property
    def copy_ms(self) -> float | None:
        """Median time of the host-to-device copy, ms; None for a watched loop, which hides it."""
        return None if self.watched else self._median_ms(2, 3)

    @property
    def compute_ms(self) -> float | None:
        """Median time of forward, backward and optimizer (a watched loop's body), ms."""
        return self._median_ms(4, 5)

    def _median_ms(self, start: int, end: int) -> float | None:
        stamps = self._measured()
        if stamps is None:
            return None
        return float(np.median(stamps[1:, end] - stamps[1:, start]) * 1e3)

    @property
    def spread(self) -> float | None:
        """Unevenness: IQR over median of the throughput of the run's five stretches."""
        stamps = self._measured()
        return None if stamps is None else unevenness(stamps[:, 5], BLOCKS)

    @property
    def noisy(self) -> bool:
        """True where `spread` is so large that small differences mean nothing."""
        return (self.spread or 0.0) > NOISY

    @property
    def loss(self) -> list[float]:
        """The loss of every step; NaN where it was not finite."""
        losses = [step.get("loss") for step in self._events("step")]
        return [float("nan") if loss is None else loss for loss in losses]

    @property
    def peak_memory_gib(self) -> float | None:
        """Most memory held: allocated on a GPU; resident in the bench process on a CPU."""
        peak = self._fact("memory", "peak_bytes")
        return None if peak is None else peak / 2**30

    compile_s = fact("compiled", "seconds", "Time torch.compile took, s; None for an eager run.")

    @derived
    def energy_j(self) -> float | None:
        """Energy the card used while training, from its own counter; None where it has none."""
        if not (steps := self._events("step")):
            return None
        first, last = steps[0]["t"][0], steps[-1]["t"][3]
        inside = [s.get("energy_j") for s in self.telemetry if first <= s["t_ns"] <= last]
        counts = [joules for joules in inside if joules is not None]
        return counts[-1] - counts[0] if len(counts) > 1 else None

    # -- what others make of it ------------------------------------------------------------------

    def diagnose(self) -> Any:
        """Name what holds the run back, with evidence and advice (a Diagnosis)."""
        return above("Run.diagnose")(self)

    @derived
    def breakdown(self) -> Any:
        """The average step by class, every ns in one (a StepBreakdown); None if too short."""
        return above("Run.breakdown")(self)

    @property
    def xray(self) -> Any:
        """The x-ray's trace as a Breakdown; None where it lies in no folder."""
        return above("Run.xray")(self)

    def compare(self, other: Run) -> Comparison:
        """Compare this run with `other`, which came before it."""
        return Comparison(other, self)

    # -- keeping and showing ---------------------------------------------------------------------

    def _extra_lines(self) -> list[str]:
        line = above("Run.xray_event")(self) if self.event("xray_trace") is None else None
        return [line] if line else []

    @of_one_moment
    def to_dict(self) -> dict[str, Any]:
        """Return the run's statistics under their attribute names, as JSON types."""
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "loss": [step.get("loss") for step in self._events("step")],
            "mark": self.mark,
            "machine": self.machine.to_dict(),
            "pipeline": self.pipeline.to_dict(),
        }

    @of_one_moment
    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.recorded else ""
        knobs = ", ".join(f"{n}={v!r}" for n, v in self.asked.changed().items()) or "defaults"
        head = f"{mark}Run({self.alias or knobs}) {self.outcome}"
        few = f"{self.steps} steps" if self.utilization is None else ""
        return f"{head}: {self.error or few or self.numbers}"

    @derived
    def numbers(self) -> str:
        """The measured numbers in one line, with what was simulated rather than measured."""
        if self.utilization is None:
            return f"{self.steps} steps: too few to measure"
        copy = "" if self.watched else f"copy {self.copy_ms:.1f}, "
        parts = f"wait {self.wait_ms:.1f}, {copy}{'loop body' if self.watched else 'compute'}"
        text = (
            f"{self.throughput:.0f} {self.unit}/s, {self.machine.kind.upper()} busy "
            f"{self.busy_text}, step {self.step_ms:.1f} ms ({parts} {self.compute_ms:.1f})"
        )
        stated = "hidden" if self.alias else self.pipeline.simulated_delay
        text += f"; simulated delay: {stated}" if stated else ""
        return text + (f"; {noise(self.spread)}" if self.noisy else "")
