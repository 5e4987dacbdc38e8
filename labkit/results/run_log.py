"""What the log of a run says: its pipeline, its steps, what was seen beside them, and its clock."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labkit.instruments.growth import Grown
from labkit.quotas import GIB
from labkit.results.log_data import LogData, fact
from labkit.results.watched_pipeline import Watched, pipeline_of
from labkit.spec import PX, STEPS, Pipeline
from labkit.stamps.record import Event
from labkit.stamps.step_classes import StepClock
from labkit.stamps.steps import ALL, HOST, MOMENTS

CPU_VALUES = {"image_px": PX, "steps": STEPS}  # in older logs of a CPU, for what was automatic


def series(name: str) -> Any:
    """Return a property of a log: all events of a name."""
    return property(lambda log: log.all(name))


class RunLog(LogData):
    """The log of one run at a moment. Its statistics are those of `RunData`."""

    # What ran

    @cached_property
    def asked(self) -> Pipeline | Watched:
        """The pipeline that was asked for; of a watched loop, what is known of it."""
        knobs = self.fact_of("spec", "pipeline", default={})
        if self.machine.kind == "cpu":
            automatic = {name for name, value in CPU_VALUES.items() if knobs.get(name) == value}
            knobs = knobs | dict.fromkeys(automatic)
        return self._pipeline(knobs)

    @cached_property
    def pipeline(self) -> Pipeline | Watched:
        """The pipeline that ran, with every automatic value filled in."""
        job = self.fact_of("job", "pipeline")
        return self.asked if job is None else self._pipeline(job)

    def _pipeline(self, knobs: dict[str, Any]) -> Pipeline | Watched:
        return Watched.of(self.watched, knobs) if self.watched else pipeline_of(knobs)

    # The type of the loader that `lk.watch` looked at; None for our own runs
    watched: str | None = fact("spec", "watched", "loader")

    # How the user's script writes its loader; None of our own runs
    loop_code: Event | None = fact("spec", "watched", "code")

    # The file and the line of a watched loop; [] where its code is a framework's
    place: list[str | int] = fact("spec", "watched", "place", default=[])

    # Whether Hugging Face's Trainer runs the watched loop
    trainer: bool = fact("spec", "watched", "trainer", default=False)

    # {knob: why it could not act on this device}
    not_applied: dict[str, str] = fact("job", "not_applied", default={})

    # Its steps

    @property
    def steps(self) -> int:
        """Steps in the log, warm-up included: all, unless it `is_cut_short`."""
        return len(self._steps)

    @property
    def is_cut_short(self) -> bool:
        """Whether a watched loop went on for so long that its last steps are not in the log."""
        return bool(self.event("full") or self.event("sums"))

    # What is counted: "samples", or "batches" of a watched loop that hides its samples
    unit: str = fact("job", "unit", default="samples")

    @property
    def samples(self) -> int:
        """Samples trained on, warm-up included."""
        return int(self._steps.moments("n").sum())

    @property
    def loss(self) -> list[float]:
        """The loss of every step; NaN where it was not finite."""
        return self._steps.moments("loss").tolist()

    @property
    def thread_s(self) -> np.ndarray:
        """CPU time of the computing thread per step (steps,), s; NaN if unknown."""
        return self._steps.moments("cpu") / 1e9

    @property
    def batch_bytes(self) -> np.ndarray:
        """Bytes of the arrays in each step's batch (steps,); NaN if unknown."""
        return self._steps.moments("bytes")

    # The number format of most of what a watched loop trains, as "float32"; None: unknown
    weights_dtype: str | None = fact("job", "weights_dtype")

    # The number format of the largest array in its first batch; None if unknown
    batch_dtype: str | None = fact("job", "batch_dtype")
    # Whether its loader makes batches on a GPU
    batch_on_gpu: bool = fact("job", "batch_on_gpu", default=False)

    @cached_property
    def exchange_ns(self) -> np.ndarray:
        """When a rank had its last gradient, and when all were averaged: (steps, 2), ns.

        On the machine's clock; NaN where a step exchanged none.
        """
        return self._steps.table(MOMENTS["comm"], ALL)

    # What was seen beside them

    @property
    def peak_memory_gib(self) -> float | None:
        """The most memory held, GiB: allocated on a CUDA GPU, resident on a CPU.

        On Apple's GPU, which reports no peak, what its driver held in the end.
        """
        return self.fact_of("memory", "peak_bytes", default=0) / GIB or None

    # Why a device was timed on the host's clock, and the loop waited for each step. None where the
    # device's own events timed it, or on a CPU
    no_events: str | None = fact("clock", "why")

    # The instruments' samples, each with `t_ns`; gaps are None
    telemetry: list[Event] = series("telemetry")

    # The passes over a watched loader as they began: `n`, `step` and `began` (ns)
    passes_begun: list[Event] = series("epoch")

    @property
    def first_steps(self) -> list[int]:
        """The number of the first step of each pass."""
        return [event["step"] for event in self.passes_begun]

    # The passes over a watched loader as they ended: `n`, `began`, `ended` (ns), `trains`
    passes_ended: list[Event] = series("pass")

    # Why no stack was sampled; None where some were, or may still be
    no_lines: str | None = fact("no_lines", "why")

    # Variables of a watched loop that grew, with their line
    growth: list[Grown] = fact("growth", "found", default=[])

    # What a few profiled steps were made of
    xray_facts: Event | None = fact("xray")

    # One clock: seconds since the first batch was asked for

    @cached_property
    def _step_clock(self) -> StepClock:
        return StepClock(self._steps, self.first_steps)

    @cached_property
    def stamps(self) -> np.ndarray:
        """Times (steps, 6), s: asked, ready, copy start and end, busy start and end.

        On a CPU copy and compute are what the host did, else the device's own.
        """
        return self._step_clock.stretch(0, self.steps)

    def stretch(self, start: int, stop: int) -> np.ndarray:
        """Return the `stamps` (n, 6) of the steps from `start` up to `stop` only."""
        return self._step_clock.stretch(start, stop)

    @property
    def busy(self) -> np.ndarray:
        """The device's busy intervals (steps, 2): start and end, s."""
        return self.stamps[:, 4:6]

    @cached_property
    def issued(self) -> np.ndarray:
        """Time at which the host had issued each step (steps,), s; early on a fed GPU."""
        return self._step_clock.moments("done")

    @property
    def length_s(self) -> float:
        """When the last step was over, s."""
        return self.end_s(self.steps - 1) if self.steps else 0.0

    def end_s(self, number: int) -> float:
        """Return when a step was over, s."""
        return float(self._step_clock.moments("busy_end", number)[0])

    @property
    def host_ns(self) -> np.ndarray:
        """The host's stamps (steps, 4), ns on the machine's clock.

        When it asked for data, had it, had issued the copy, and had issued the compute.
        """
        return self._steps.table(HOST, slice(self.steps))

    def seconds(self, at_ns: ArrayLike) -> np.ndarray:
        """Return moments of this run's clock (ns) in s; NaN between passes over a watched loader.

        Before there is a step, it is 0.
        """
        return self._step_clock.seconds(at_ns) if self.steps else np.zeros(np.shape(at_ns))

    def timeline(self, bins: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Return utilization over the whole run, in equal stretches: (bins,) s, (bins,) 0 to 1."""
        return self._step_clock.utilization(bins)
