"""What the log of a run says: its pipeline, its steps, what was seen beside them, and its clock."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labkit.quotas import GIB
from labkit.results.log_data import LogData, fact
from labkit.results.watched_pipeline import Watched, pipeline_of
from labkit.spec import Pipeline
from labkit.stamps.record import Event
from labkit.stamps.step_classes import StepClock
from labkit.stamps.steps import ALL, HOST, MOMENTS

MOST_NAMED = 3  # of the programs that ran beside it


class RunLog(LogData):
    """The log of one run at a moment. Its statistics are those of `RunData`."""

    # What ran

    @cached_property
    def asked(self) -> Pipeline | Watched:
        """The pipeline that was asked for; of a watched loop, what is known of it."""
        return self._pipeline(self.fact_of("spec", "pipeline", default={}))

    @cached_property
    def pipeline(self) -> Pipeline | Watched:
        """The pipeline that ran, with every automatic value filled in."""
        job = self.fact_of("job", "pipeline")
        return self.asked if job is None else self._pipeline(job)

    def _pipeline(self, knobs: dict[str, Any]) -> Pipeline | Watched:
        return Watched.of(self.watched, knobs) if self.watched else pipeline_of(knobs)

    # The type of the loader that `lk.watch` looked at; None for our own runs
    watched: str | None = fact("spec", "watched", "loader")

    # What else is known of a watched loop: the `code` of its loader, its `place` (file and line),
    # whether Hugging Face's `trainer` runs it
    loop: Event = fact("spec", "watched", default={})

    # {knob: why it could not act on this device}
    not_applied: dict[str, str] = fact("job", "not_applied", default={})

    # Its steps

    @property
    def steps(self) -> int:
        """Steps in the log, warm-up included: all, but of a watched loop whose log is "full"."""
        return len(self._steps)

    # What is counted: "samples", or "batches" of a watched loop that hides its samples
    unit: str = fact("job", "unit", default="samples")

    @property
    def samples(self) -> int:
        """Samples trained on, warm-up included."""
        return int(self.each("n").sum())

    @property
    def loss(self) -> list[float]:
        """The loss of every step; NaN where it was not finite."""
        return self.each("loss").tolist()

    def each(self, name: str) -> np.ndarray:
        """Return a number of each step (steps,), NaN if unknown: see `stamps.steps.NUMBERS`.

        "cpu" is the CPU time of the computing thread, ns, "bytes" those of the batch's arrays.
        """
        return self._steps.moments(name)

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

    @property
    def telemetry(self) -> list[Event]:
        """The instruments' samples, each with `t_ns`; gaps are None."""
        return self.all("telemetry")

    @property
    def first_steps(self) -> list[int]:
        """The number of the first step of each pass over a watched loader."""
        return [event["step"] for event in self.all("epoch")]

    # What a few profiled steps were made of
    xray_facts: Event | None = fact("xray")

    def programs(self, event: str) -> list[str]:
        """Return the others that used most of the cores ("beside"), or were "on_the_card".

        Each as "python (pid 123)".
        """
        cores = Counter()
        for found in self.all(event):
            for process in found["processes"]:
                cores[f"{process['name']} (pid {process['pid']})"] += process.get("cores") or 0
        return [name for name, _ in cores.most_common(MOST_NAMED)]

    # One clock: seconds since the first batch was asked for

    @cached_property
    def clock(self) -> StepClock:
        """Its steps in s: all of them, or a stretch."""
        return StepClock(self._steps, self.first_steps)

    @cached_property
    def stamps(self) -> np.ndarray:
        """Times (steps, 6), s: asked, ready, copy start and end, busy start and end.

        On a CPU copy and compute are what the host did, else the device's own.
        """
        return self.clock.stretch(0, self.steps)

    @property
    def busy(self) -> np.ndarray:
        """The device's busy intervals (steps, 2): start and end, s."""
        return self.stamps[:, 4:6]

    @cached_property
    def issued(self) -> np.ndarray:
        """Time at which the host had issued each step (steps,), s; early on a fed GPU."""
        return self.clock.moments("done")

    @property
    def length_s(self) -> float:
        """When the last step was over, s."""
        return self.end_s(self.steps - 1) if self.steps else 0.0

    def end_s(self, number: int) -> float:
        """Return when a step was over, s."""
        return float(self.clock.moments("busy_end", number)[0])

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
        return self.clock.seconds(at_ns) if self.steps else np.zeros(np.shape(at_ns))

    def timeline(self, bins: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Return utilization over the whole run, in equal stretches: (bins,) s, (bins,) 0 to 1."""
        return self.clock.utilization(bins)
