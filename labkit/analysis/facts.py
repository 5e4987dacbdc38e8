"""What the rules of the diagnosis look at: the numbers of one run, or of one profiler trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.cost import power
from labkit.analysis.step_breakdown import CLASSES, split_steps
from labkit.results.timeline import busy_until

XRAY_NUMBERS = ("steps", "window_us", "gap_us", "tiny_us", "tiny_ops", "elementwise_us",
                "fusible_us")  # fmt: skip
XRAY_OPTIONAL = ("fixed_share", "bf16_speedup")  # None where they could not be tried
POWER_LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


@dataclass(frozen=True)
class Witness:
    """One instrument's word on the time that the events call busy."""

    said: str  # what it measured, and against which threshold
    works: bool | None = None  # whether the device worked; None where this cannot be told from it
    share: float = 1.0  # of the busy time in which it worked, 0 to 1, where it says "not"


@dataclass(frozen=True)
class Facts:
    """One run or trace in numbers; shares are of wall time, 0 to 1, None where not measured."""

    kind: str  # "cpu" or "gpu": what the device is
    source: str = ""  # where the shares come from, in words
    looked_at: str = "x-ray"  # where kernels were seen, in words
    shares: dict[str, float] = field(default_factory=dict)  # by class of a step; they add up to 1
    pauses: float = 0.0  # compute time beyond ordinary steps, in single ones
    taken_by_workers: float | None = None  # time in which our workers had the core the model needed
    taken_by_others: float = 0.0  # and in which other programs had it
    foreign_cores: float | None = None  # that programs other than the run used while it trained
    stalls: float = 0.0  # share of the waiting that falls into the worst tenth of the steps
    compute_us: float | None = None  # of the average step
    trace: Any = None  # the Breakdown of the x-ray's trace on a GPU, or of the one diagnosed
    from_trace: bool = False  # whether all of this was read off that trace
    witnesses: tuple[Witness, ...] = ()  # what else can tell whether a busy GPU worked
    xray: dict[str, Any] = field(default_factory=dict)  # the compute as the bench's x-ray saw it
    knobs: dict[str, Any] = field(default_factory=dict)  # the pipeline's settings
    cores: int | None = None  # that the run may use


class Evidence:
    """The measured steps of a run, from which facts can be drawn, and drawn again resampled."""

    def __init__(self, run: Any):
        """Read the stamps, thread times, x-ray and settings of `run`."""
        first, kind = max(run.warmup - 1, 0), run.machine.kind
        self.matrix = split_steps(run.stamps[first:])  # (steps, classes), s
        self.wait, _, self.compute, *_ = self.matrix.T
        self.own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        trace = run.xray if kind == "gpu" else None
        if trace is not None and trace.device_kind != "gpu":
            trace = None  # the profiler could not look into the device
        used, foreign = cores_used(run)
        self.known = Facts(
            kind=kind,
            foreign_cores=foreign,
            trace=trace,
            witnesses=witnesses(run) if trace is None else (),
            xray=_sound(run.xray_facts),
            knobs=run.pipeline.to_dict(),
            cores=run.machine.cpu_cores,
        )
        self.pauses = self._pauses()
        # The part (0 to 1) of what was taken from the model's thread that our workers took
        self.blame = 1.0 if self.known.knobs.get("num_workers") else 0.0
        if self.blame and foreign is not None and len(self):
            stolen = self._stolen(np.arange(len(self))) or 0.0
            running = (1 - stolen) * self.compute.sum() / self.matrix.sum()
            workers = max(0.0, used - float(running))
            self.blame = workers / max(workers + foreign, 1e-9)

    def __len__(self) -> int:
        """The number of steps; 0 where the stamps show no time."""
        return len(self.matrix) if self.matrix.any() else 0

    def _pauses(self) -> np.ndarray:
        """Return how much each step's compute exceeds an ordinary one, s; 0 where by little.

        Steps are compared with those at the same place of a gradient accumulation. On a CPU only
        time that the model's own thread spent counts, where it was read: to lose the core is no
        pause of ours.
        """
        compute = np.where(np.isnan(self.own), self.compute, np.fmin(self.compute, self.own))
        excess, cycle = np.zeros(len(compute)), self.known.knobs.get("accumulation_steps") or 1
        for place in range(min(cycle, len(compute))):
            some = compute[place::cycle]
            limit = limits.PAUSE * np.quantile(some, limits.ORDINARY)
            excess[place::cycle] = np.where(some > limit, some - limit / limits.PAUSE, 0.0)
        return excess

    def _stolen(self, rows: np.ndarray) -> float | None:
        """Return the share of the compute in which its thread did not run; None if never read."""
        known = rows[~np.isnan(self.own[rows])]
        if self.known.kind != "cpu" or not len(known):
            return None
        wall = self.compute[known]
        return float(np.maximum(wall - self.own[known], 0).sum() / max(wall.sum(), 1e-9))

    def facts(self, rows: np.ndarray | None = None) -> Facts:
        """Return the facts of all steps, or of the given rows (a resampled run)."""
        rows = np.arange(len(self)) if rows is None else rows
        matrix, compute, wait = self.matrix[rows], self.compute[rows], self.wait[rows]
        total = float(matrix.sum()) or 1.0  # of drawn steps, none need have taken any time
        stolen = self._stolen(rows)
        lost = (stolen or 0.0) * float(compute.sum()) / total
        worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
        ours = stolen is not None and self.known.knobs.get("num_workers")
        return replace(
            self.known,
            source=f"step stamps, {len(matrix)} steps",
            shares=dict(zip(CLASSES, (matrix.sum(axis=0) / total).tolist(), strict=True)),
            pauses=float(self.pauses[rows].sum() / total),
            taken_by_workers=lost * self.blame if ours else None,
            taken_by_others=lost - lost * self.blame,
            stalls=float(worst.sum() / wait.sum()) if wait.sum() > 0 else 0.0,
            compute_us=float(compute.mean() * 1e6),
        )


def _sound(seen: Any) -> dict[str, Any]:
    """Return the x-ray's facts where all that the rules read is a number, else nothing."""
    seen = dict(seen or {})
    needed = all(type(seen.get(name)) in (int, float) for name in XRAY_NUMBERS)
    optional = all(type(seen.get(name)) in (int, float, type(None)) for name in XRAY_OPTIONAL)
    return seen if needed and optional else {}


def cores_used(run: Any) -> tuple[float | None, float | None]:
    """Return the cores that the run, and that all other programs, used while it trained."""
    end = run.stamps[-1, 5] if run.steps else 0.0
    inside = [s for s in run.telemetry if 0 < run.seconds(s["t_ns"]) <= end]
    rows = [(s.get("own_cpu"), s.get("cpu"), s.get("cpus")) for s in inside]
    rows = [(own * cpus, cpu * cpus) for own, cpu, cpus in rows if None not in (own, cpu, cpus)]
    if not rows:
        return None, None
    own, everyone = np.mean(rows, axis=0)
    return float(own), max(0.0, float(everyone - own))


def of_trace(breakdown: Any) -> Facts:
    """Return the facts of a profiler trace, from its `Breakdown`."""
    s, on_gpu = breakdown.shares, breakdown.device_kind == "gpu"
    source = f"profiler trace {breakdown.source}, {breakdown.steps} steps"
    shares = {
        "wait": s["dataloader"],
        "copy": s["memcpy"] + s["memset"],
        "compute": s["kernel"] if on_gpu else s["cpu_exec"],
        "launch": s["runtime"] + (s["cpu_exec"] if on_gpu else 0.0) + s["other"],
        "other": s["communication"],
    }
    return Facts(
        kind=breakdown.device_kind,
        source=source,
        looked_at=source,
        shares=shares,
        compute_us=breakdown.step_us * shares["compute"],
        trace=breakdown,
        from_trace=True,
    )


# -- second witnesses of a busy GPU: did it work, or wait between kernels for the next launch? ----
#
# A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
# no x-ray looked inside, these can tell: the host that ran ahead (stamps), the SMs (GPM counters of
# Hopper and later cards) and the power the card drew.


def witnesses(run: Any) -> tuple[Witness, ...]:
    """Return what there is on a GPU run, the surest first; () on a CPU, where busy is exact."""
    if run.machine.kind != "gpu" or run.utilization is None:
        return ()
    span = float(run.busy[max(run.warmup - 1, 0), 1]), float(run.busy[-1, 1])  # measured, s
    found = _host_ahead(run), _sm_activity(run, *span), _power(run, *span)
    return tuple(witness for witness in found if witness is not None)


def deciding(seen: tuple[Witness, ...]) -> Witness | None:
    """Return the first witness that can tell; None where none can."""
    return next((witness for witness in seen if witness.works is not None), None)


def _host_ahead(run: Any) -> Witness:
    """The device works off a queue that the host has filled. It can only speak for the device."""
    limit = limits.WORTH_NAMING["launch"]
    said = (
        f"for {run.busy_at_least:.0%} of the time the device worked on a step that the host had "
        f"issued in full (stamps; threshold {max(run.utilization - limit, 0):.0%})"
    )
    return Witness(said, True if run.utilization - run.busy_at_least < limit else None)


def _sm_activity(run: Any, start: float, end: float) -> Witness | None:
    """GPM counts SM cycles with at least one warp: few also where kernels fill few SMs."""
    times = np.array([run.seconds(sample["t_ns"]) for sample in run.telemetry], float)
    shares = [(sample.get("gpm") or {}).get("sm") for sample in run.telemetry]
    shares = np.array(shares, float)  # None, not read, becomes NaN
    if len(times) < 2:
        return None
    length = np.diff(times)  # each reading is the mean since the one before
    kept = (times[:-1] >= start) & (times[1:] <= end) & (length > 0) & np.isfinite(shares[1:])
    busy = np.diff(busy_until(run.busy, np.nan_to_num(times)))[kept].sum()
    if kept.sum() < limits.MIN_READINGS or busy <= 0:
        return None
    share = float((shares[1:] * length)[kept].sum() / busy)
    said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
    return _word(said, share, share, limits.SMS_WORK, limits.SMS_REST)


def _power(run: Any, start: float, end: float) -> Witness | None:
    """A card that waits draws little. So do kernels that use little of it."""
    caps = [cap for s in run.telemetry if (cap := s.get("power_limit_w") or 0) > 0]
    watts = power(run)[0]
    if not watts:  # a card without an energy counter: its power readings
        inside = [s for s in run.telemetry if start + POWER_LAGS_S <= run.seconds(s["t_ns"]) <= end]
        read = [s["power_w"] for s in inside if s.get("power_w") is not None]
        watts = float(np.mean(read)) if len(read) >= limits.MIN_READINGS else None
    if not caps or watts is None or run.utilization <= 0:
        return None
    drawn = watts / float(np.median(caps))
    said = f"the card drew {drawn:.0%} of its power limit ({watts:.0f} W; NVML"
    # While busy it drew at least the mean, and at most what it is if nothing was drawn while idle
    most = drawn / run.utilization
    return _word(said, drawn, most, limits.POWER_WORKS, limits.POWER_RESTS)


def _word(said: str, least: float, most: float, works: float, rests: float) -> Witness:
    """Judge a reading that lies between `least` and `most`."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", True)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", False, max(most, 0.0) / works)
    return Witness(f"{said}; between {rests:.0%} and {works:.0%} it tells nothing)")
