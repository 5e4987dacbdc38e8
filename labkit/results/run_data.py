"""The result of a run at one moment: every number is derived from its log when it is asked for."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from labkit.bench.grid import NOISY
from labkit.knobs import Settings, as_typed
from labkit.quotas import GIB
from labkit.results.device_peaks import Peak, card
from labkit.results.log_data import LogData, fact
from labkit.results.workers import LoaderWorkers
from labkit.spec import KNOBS, PX, STEPS, Pipeline
from labkit.stamps.event_shapes import MOST
from labkit.stamps.record import Event, RecordError
from labkit.stamps.step_classes import CLASSES, StepClock, split_steps, unevenness
from labkit.stamps.steps import BUSY
from labkit.text import percent

if TYPE_CHECKING:
    import pandas

HIDES = 0.05  # of wall time: fewer gaps than this within the busy time are not mentioned
# Above this the measured peak was wrong: no MFU. Between 1 and this it counts as 1: skipped padding
# can bring an eighth, and timing 10 %
NO_PEAK = 1.25
CPU_VALUES = {"image_px": PX, "steps": STEPS}  # in version 1 on a CPU, for what was automatic
BLOCKS = 5  # stretches of the run, whose throughputs are compared to judge its noise


def _mean_of(classes: slice) -> Any:
    """Return a property of a run: the mean time of some of a step's classes, ms."""

    def mean(run: RunData) -> float | None:
        return None if run.mean_ms is None else float(run.mean_ms[classes].sum())

    return property(mean)


class Watched(Pipeline):
    """The settings of a watched loop's loader, under the names of the knobs; others are None."""

    def __post_init__(self) -> None:
        """Keep what is a plain value: a record is anybody's."""
        for name, knob in KNOBS.items():
            value = getattr(self, name)
            is_count = isinstance(value, int) and 0 <= value < MOST
            if not (is_count or (value and value in (knob.choices or ()))):
                object.__setattr__(self, name, None)

    def changed(self) -> Settings:
        """Return what is known."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def but(self, **changes: object) -> NoReturn:
        """Raise ValueError: labkit holds neither the data nor the model of a watched loop."""
        raise ValueError(
            "this run was watched, not made by labkit: change your own loader and watch it again."
        )


def pipeline_of(knobs: Settings, is_watched: object = None) -> Pipeline:
    """Build a Pipeline from a record; raise RecordError where its values are not allowed."""
    known: Settings = {name: value for name, value in knobs.items() if name in KNOBS}
    if is_watched:
        known = dict.fromkeys(KNOBS) | known
        return Watched(**known)
    try:
        return Pipeline(**known)
    except ValueError as error:
        raise RecordError(f"The record's pipeline is not valid: {error}") from None


class RunData(LogData):
    """One measured run at one moment. Statistics leave out the warm-up."""

    NUMBERS = (  # in its JSON
        "id", "utc", "recorded", "outcome", "error", "mark",
        "steps", "samples", "warmup", "utilization", "busy_at_least", "throughput",
        "step_ms", "wait_ms", "copy_ms", "compute_ms", "other_ms", "spread", "noisy", "no_events",
        "peak_memory_gib", "energy_j", "mfu", "mbu", "not_applied", "padding",
    )  # fmt: skip

    # What ran

    @cached_property
    def asked(self) -> Pipeline:
        """The pipeline that was asked for; of a watched loop, what is known of it."""
        knobs = self.fact_of("spec", "pipeline", default={})
        if self.fact_of("spec", "version") == 1 and self.machine.kind == "cpu":
            automatic = {name for name, value in CPU_VALUES.items() if knobs.get(name) == value}
            knobs = knobs | dict.fromkeys(automatic)
        return pipeline_of(knobs, self.watched)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline that ran, with every automatic value filled in."""
        job = self.fact_of("job", "pipeline")
        return self.asked if job is None else pipeline_of(job, self.watched)

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
        """Return a number of each step (steps,), NaN if unknown: see `stamps.steps`.

        "cpu" is the CPU time of the computing thread, ns, "bytes" those of the batch's arrays.
        When a rank had its last gradient is "complete", when all were averaged "averaged", ns.
        """
        return self._steps.moments(name)

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

    def readings(self, key: str, since: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return what was read of a metric from `since` (s) to the end of the last step.

        Moments (n,), s, and values (n,), NaN where there is a gap.
        """
        read = [
            (each["t_ns"], (each.get("gpm") or {}).get(key, each.get(key)))
            for each in self.telemetry
        ]
        table = np.array(read, dtype=float).reshape(-1, 2)  # None is NaN
        moments = self.seconds(table[:, 0])
        inside = (moments >= since) & (moments <= self.length_s) & (self.steps > 0)
        return moments[inside], table[inside, 1]

    def mean_reading(self, key: str, since: float = 0.0, fewest: int = 1) -> float | None:
        """Return the mean of a metric; None where there are fewer readings than `fewest`."""
        _, values = self.readings(key, since)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) >= fewest else None

    @property
    def first_steps(self) -> list[int]:
        """The number of the first step of each pass over a watched loader."""
        return [event["step"] for event in self.all("epoch")]

    # What a few profiled steps were made of
    xray_facts: Event | None = fact("xray")

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
        return self.clock.stamps()

    @property
    def busy(self) -> np.ndarray:
        """The device's busy intervals (steps, 2): start and end, s."""
        return self.stamps[:, -len(BUSY) :]

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

    def seconds(self, at_ns: ArrayLike) -> np.ndarray:
        """Return moments of this run's clock (ns) in s; NaN between passes over a loader."""
        return self.clock.seconds(at_ns)

    # The measured steps

    @cached_property
    def warmup(self) -> int:
        """Steps left out of the statistics: those prefetched at the start, but at most a third."""
        wanted = self.fact_of("begin", "warmup", default=0)
        return max(1, min(wanted, self.steps // 3)) if self.steps else 0

    @cached_property
    def warm_s(self) -> float:
        """When the warm-up's last step was over, s; of a run with a step."""
        return self.end_s(self.warmup - 1)

    @cached_property
    def _wall_s(self) -> float | None:
        """The time of the measured steps, from the end of the warm-up on; None before two steps."""
        if self.steps < 2:
            return None
        wall_s = self.length_s - self.warm_s
        return wall_s if wall_s > 0 else None

    # How busy the device was, and how much it did

    @cached_property
    def utilization(self) -> float | None:
        """Device-busy share of wall time, 0 to 1, warm-up excluded; None before two steps.

        The device had work, which need not have used all of it. On a CPU: forward, backward and
        optimizer. On a GPU: from a step's first kernel to its last, gaps included: an upper bound.
        None for a watched loop on a device whose times are not known (a Mac's), of which the host
        stamps only the launches.
        """
        if self._wall_s is None or self.launches_only:
            return None
        return self.clock.busy_s(self.warmup) / self._wall_s

    @cached_property
    def busy_at_least(self) -> float | None:
        """Share of wall time (0 to 1) in which the device certainly worked, warm-up excluded.

        On a GPU: what was left of each step when the host had issued all of it, so that no gap was
        a wait for the host. Small where launches are slow, and where the loop waits for each step.
        """
        if self._wall_s is None or self.machine.kind != "gpu" or self.launches_only:
            return self.utilization
        start, end = self.busy[self.warmup :].T
        queued = end - np.clip(self.issued[self.warmup :], start, end)
        return float(queued.sum() / self._wall_s)

    @property
    def launches_only(self) -> bool:
        """Whether a device of its own was watched, and only the host's times are known.

        Those are the device's too where the loop waited for each step (`no_events`).
        """
        watched_gpu = bool(self.watched) and self.machine.kind == "gpu" and not self.no_events
        return watched_gpu and not self._steps.has_device_times()

    @property
    def busy_text(self) -> str:
        """The utilization in words: "17%", "at most 93%" where gaps may hide in it, "unknown"."""
        most, least = self.utilization, self.busy_at_least
        if most is None or least is None:
            return "unknown"
        is_bound = most - least > HIDES and self.xray_facts is None
        return f"at most {most:.0%}" if is_bound else f"{most:.0%}"

    @cached_property
    def throughput(self) -> float | None:
        """Samples per second of wall time, warm-up excluded."""
        if self._wall_s is None:
            return None
        return float(self.each("n")[self.warmup :].sum() / self._wall_s)

    # Share of a watched loop's tokens that is padding, 0 to 1; None where no batch held text
    padding: float | None = fact("padding", "share")

    @property
    def frame(self) -> pandas.DataFrame:
        """The measured steps as a DataFrame: when each ended (s), its parts (ms), its loss."""
        import pandas

        numbers = pandas.RangeIndex(self.warmup, self.steps, name="step")
        frame = pandas.DataFrame(self.steps_ms, numbers, [f"{part}_ms" for part in CLASSES])
        frame["other_ms"] += frame.pop("launch_ms")
        frame["step_ms"] = frame.sum(axis=1)
        frame["end_s"] = self.busy[self.warmup :, 1]
        frame["loss"] = self.loss[self.warmup :]
        return frame

    # Where the time of a step went

    @cached_property
    def steps_ms(self) -> np.ndarray:
        """Wait, copy, compute, launch, other of the measured steps: (steps, 5), ms."""
        if self.steps < 2:
            return np.zeros((0, 5))
        return split_steps(self.stamps[self.warmup - 1 :]) * 1e3  # with the warm-up's last step

    @cached_property
    def mean_ms(self) -> np.ndarray | None:
        """The mean measured step by class (5,), ms; None before there is one."""
        return self.steps_ms.mean(axis=0) if self.steps > 1 else None

    # Mean time from one step's end to the next, ms: its parts' sum
    step_ms: float | None = _mean_of(slice(5))

    # Mean time a step's device stood still for its next batch, ms
    wait_ms: float | None = _mean_of(slice(1))

    @property
    def copy_ms(self) -> float | None:
        """Mean host-to-device copy, ms; None for a watched loop, which hides it."""
        mean_ms = self.mean_ms
        return None if mean_ms is None or self.watched else float(mean_ms[1])

    # Mean of forward, backward, optimizer (a watched loop's body), ms
    compute_ms: float | None = _mean_of(slice(2, 3))

    # Mean rest of a step, ms: launch gaps, host work between
    other_ms: float | None = _mean_of(slice(3, 5))

    @cached_property
    def spread(self) -> float | None:
        """Unevenness: IQR over median of the throughput of the run's five stretches."""
        return unevenness(self.clock.moments("busy_end", max(0, self.warmup - 1)), BLOCKS)

    @property
    def noisy(self) -> bool:
        """True where `spread` is so large that small differences mean nothing."""
        return (self.spread or 0.0) > NOISY

    @property
    def noise(self) -> str:
        """What is said where it is noisy; else ""."""
        return f"NOISY: throughput varied by {self.spread:.0%} (IQR/median)" if self.noisy else ""

    @property
    def energy_j(self) -> float | None:
        """Energy the card used while training, from its own counter; None where it has none."""
        _, joules = self.readings("energy_j")
        counts = joules[np.isfinite(joules)]
        return float(np.ptp(counts)) if len(counts) > 1 else None

    # The loader

    @cached_property
    def workers(self) -> LoaderWorkers:
        """What the loader did, worker by worker; falsy where nothing was recorded of it."""
        return LoaderWorkers(self)

    # What it reached of what its device can do

    @cached_property
    def peak(self) -> Peak | None:
        """What `mfu` and `mbu` are held against: a listed GPU's data sheet, in its precision.

        Else what `lk.peaks()` had measured there, on as many threads, before the run ended; or
        None.
        """
        kind, name = self.fact_of("work", "precision"), self.machine.name
        roof = self.fact_of("work", "roof", default={})
        rate, memory, source = roof.get(kind), roof.get("bandwidth"), f"measured on {name}"
        sheet = card(name)
        if sheet and kind in sheet["tflop_per_s"]:
            rate, memory = sheet["tflop_per_s"][kind] * 1e12, sheet["gb_per_s"] * 1e9
            source = f"data sheet of {sheet['name']}"
        return Peak(rate, memory, kind, source) if rate else None

    @cached_property
    def mfu(self) -> float | None:
        """FLOPs that the model needs over those of `peak` in wall time, 0 to 1.

        None where either is unknown. Busy is not MFU.
        """
        return self._share_of_peak("flops", self.peak and self.peak.flop_per_s)

    @cached_property
    def mbu(self) -> float | None:
        """As `mfu`, of bytes that have to move (a lower bound); None where the cache holds them."""
        held, cache = (self.fact_of("work", of, default=0) for of in ("held_bytes", "cache_bytes"))
        if held <= cache:
            return None
        return self._share_of_peak("bytes", self.peak and self.peak.byte_per_s)

    def _share_of_peak(self, what: str, per_s: float | None) -> float | None:
        """Return the FLOPs or bytes of a run's samples, over what `per_s` allows: 0 to 1, or None.

        The zeros of a convolution's padding are counted, and a good kernel leaves them out;
        Winograd's kernels (cuDNN, FP32) take 16 multiplications for 36 of a 3x3 one (Lavin and
        Gray, CVPR 2016). What that brings above 1 counts as 1. Far above, others used the machine
        while its peak was measured.
        """
        amount, samples = (self.fact_of("work", of, default=0) for of in (what, "samples"))
        if not amount or samples <= 0 or not self.throughput or not per_s:
            return None
        reached = amount / samples * self.throughput / per_s
        return None if reached > NO_PEAK else min(reached, 1.0)

    # As text and as JSON

    def to_dict(self) -> dict[str, object]:
        """Return the run's statistics under their attribute names, as JSON types."""
        return {
            **{name: getattr(self, name) for name in self.NUMBERS},
            "machine": self.machine.to_dict(),
            "peak": self.peak and str(self.peak),
            "loss": [None if math.isnan(loss) else loss for loss in self.loss],
            "pipeline": self.pipeline.to_dict(),
        }

    @property
    def what(self) -> str:
        """The knobs that were set."""
        loader = {"watched": self.watched} if self.watched else {}
        return as_typed(loader | self.asked.changed()) or "defaults"

    @property
    def in_short(self) -> str:
        """The throughput and the utilization of a run that has them."""
        kind = self.machine.kind.upper()
        return f"{self.throughput:.0f} {self.unit}/s, {kind} busy {self.busy_text}"

    @property
    def numbers(self) -> str:
        """The measured numbers in one line, with what was simulated rather than measured."""
        if self.throughput is None:
            return f"{self.steps} steps: too few to measure"
        body = "loop body" if self.watched else "compute"  # with its copies, logging and all
        means = {"wait": self.wait_ms, "copy": self.copy_ms}
        means |= {body: self.compute_ms, "other": self.other_ms}
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in means.items() if ms is not None)
        facts = [
            f"{self.in_short}, step {self.step_ms:.1f} ms ({parts})",
            self.mfu and f"MFU {percent(self.mfu)} of {self.peak}",
            self.pipeline.simulated_delay and f"simulated delay: {self.pipeline.simulated_delay}",
            self.noise,
        ]
        return "; ".join(filter(None, facts))
