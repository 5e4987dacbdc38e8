"""The facts that the rules of the diagnosis look at, and the findings that they yield.

A step's time belongs to the first of these that was going on: the device computes, a copy to it
runs, the host waits for data, issues work (launch), or does something else between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.instruments import Witness, throttled, witnesses
from labkit.analysis.lines import Line, Lines
from labkit.analysis.loop import Loop, of_run
from labkit.analysis.remedies import Remedy, remedies
from labkit.results.result import Result, Table
from labkit.results.timeline import CLASSES, split_steps

BOTTLENECKS = {  # every name that a diagnosis can give
    "input": "waiting for data",
    "transfer": "copies to the device",
    "launch": "the host: the device waits for its next piece of work",
    "host": "the loop body: Python, files or waiting",
    "memory_bandwidth": "memory traffic",
    "precision": "number format",
    "communication": "exchanging gradients",
    "straggler": "one rank is slower than the others",
    "compute": "the device itself",
    "unsure": "no verdict",
}
LESSONS = {  # the notebook that teaches the cure
    "input": "notebook 03 DataLoader tuning",
    "transfer": "notebook 03 DataLoader tuning",
    "launch": "notebook 07 torch.compile and kernels",
    "host": "notebook 02 Sawtooth diagnosis",
    "memory_bandwidth": "notebook 07 torch.compile and kernels",
    "precision": "notebook 05 Mixed precision",
    "communication": "notebook 09 Beyond one GPU",
    "compute": "notebook 04 Batch sizing",
}
XRAY_NUMBERS = {"steps", "window_us", "gap_us", "tiny_us", "tiny_ops", "elementwise_us",
                "fusible_us"}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time, or the reason why no verdict is given."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    cause: str  # which rule found it, in a word or two
    evidence: str  # what was measured, by which instrument, against which threshold
    advice: str  # what to change, what to expect of it, and which notebook teaches it
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    rank: int | None = None  # of several ranks, the one to blame
    lines: tuple[Line, ...] = ()  # of the user's code, the costliest first
    remedies: tuple[Remedy, ...] = ()  # of the advice, what a program can do
    code: str = ""  # what to type for the first of them, in plain PyTorch

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        several = {key: [x.to_dict() for x in getattr(self, key)] for key in ("lines", "remedies")}
        return {**vars(self), "lost_share": round(self.lost_share, 4), **several}


def loss(
    name: str, cause: str, lost: float, seen: str, source: str, change: str,
    rank: int | None = None, lines: tuple[Line, ...] = (), changes: Any = (), most: float = 0.0,
) -> Finding:  # fmt: skip
    """Return a loss as a finding, which expects half of it back to all of it.

    `changes` are the advice as data, each {knob: value}, the one to try first in front; they gain
    `most` at most, where that is known.
    """
    part = min(max(lost, 0.0), 0.98)
    gain = f"{1 / (1 - part / 2):.1f}x to {1 / (1 - part):.1f}x"
    lesson = f"; {LESSONS[name]}" if name in LESSONS else ""
    evidence = f"{seen} ({source}; threshold {limits.WORTH_NAMING[name]:.0%})."
    advice = f"{change} Expect {gain} the throughput{lesson}."
    return Finding(name, cause, evidence, advice, lost, rank, lines, remedies(changes, part, most))


@dataclass(frozen=True, repr=False)
class StepBreakdown(Result):
    """The average step of a run by class, ms; the five add up to `step_ms`."""

    step_ms: float
    wait_ms: float
    copy_ms: float
    compute_ms: float  # with what only an x-ray sees: Python, dispatch, gaps between kernels
    launch_ms: float
    other_ms: float
    steps: int

    @property
    def shares(self) -> dict[str, float]:
        """Share (0 to 1) of wall time in each class."""
        return {name: getattr(self, f"{name}_ms") / self.step_ms for name in CLASSES}

    def table(self) -> Table:
        """Return a row for each class, and the step they add up to."""
        rows = [
            (CLASSES[name], f"{part * self.step_ms:.1f}", f"{part:.0%}")
            for name, part in self.shares.items()
        ]
        total = (f"average of {self.steps} steps", f"{self.step_ms:.1f}", "100%")
        return Table([*rows, total], ("class", "ms per step", "share"))


def breakdown(run: Any) -> StepBreakdown | None:
    """Break down the average step of `run`, warm-up excluded; None before two measured steps."""
    if (mean := run.mean_ms) is None or not mean.any():
        return None
    return StepBreakdown(float(mean.sum()), *mean.tolist(), run.steps - run.warmup)


@dataclass(frozen=True)
class Facts:
    """One run or trace in numbers; shares are of wall time, 0 to 1, None where not measured."""

    kind: str  # "cpu" or "gpu": what the device is
    source: str = ""  # where the shares come from, in words
    looked_at: str = "x-ray"  # where the compute was seen from inside, in words
    shares: dict[str, float] = field(default_factory=dict)  # by class of a step; they add up to 1
    pauses: float = 0.0  # compute time beyond ordinary steps, in single ones
    taken_by_workers: float | None = None  # time in which our workers had the core the model needed
    taken_by_others: float = 0.0  # and in which other programs had it
    foreign_cores: float | None = None  # that programs other than the run used while it trained
    own_cores: float | None = None  # that the run itself used
    in_line: float | None = None  # and that its threads stood in line for
    threads: int | None = None  # that torch computes an operator with, on a CPU
    throttled: tuple[float, float | None] | None = None  # time held down by heat, and how far
    growth: tuple[dict[str, Any], ...] = ()  # variables of a watched loop that grew
    swelling: tuple[float, float] | None = None  # GiB its processes held, while it kept rising
    stalls: float = 0.0  # share of the waiting that falls into the worst tenth of the steps
    padding: float = 0.0  # share of the tokens computed that is none
    compute_us: float | None = None  # of the average step
    wait_us: float | None = None  # of the average step, for its batch
    trace: Any = None  # the Breakdown of the x-ray's trace on a GPU, or of the one diagnosed
    from_trace: bool = False  # whether all of this was read off that trace
    ranks: Any = None  # the RankTraces that it is one of
    witnesses: tuple[Witness, ...] = ()  # what else can tell whether a busy GPU worked
    xray: dict[str, Any] = field(default_factory=dict)  # the compute as the bench's x-ray saw it
    knobs: dict[str, Any] = field(default_factory=dict)  # the pipeline's settings
    cores: int | None = None  # that the run may use
    lines: Lines | None = None  # where in the code the time went, where that was sampled
    loop: Loop | None = None  # what a watched loop shows beyond its stamps
    body: dict[str, float] = field(default_factory=dict)  # part of its body that is no training


class Evidence:
    """The measured steps of a run, of which facts can be drawn, and drawn again resampled."""

    def __init__(self, run: Any):
        first, kind = max(run.warmup - 1, 0), run.machine.kind
        self.matrix = split_steps(run.stamps[first:])  # (steps, classes), s
        self.wait, _, self.compute, *_ = self.matrix.T
        self.own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        tokens = run.tokens[first + 1 :, 0]  # batches of text differ in length
        self.size = tokens / tokens.mean() if run.tokens_per_s else np.ones(len(tokens))
        trace = run.xray if kind == "gpu" else None
        if trace is not None and trace.device_kind != "gpu":
            trace = None  # the profiler could not look into the device
        (used, foreign, in_line), xray = cores_used(run), _sound(run.xray_facts)
        self.known = Facts(
            kind=kind,
            looked_at=f"x-ray of {xray['steps']} steps" if xray else "x-ray",
            foreign_cores=foreign,
            throttled=throttled(run) if kind == "gpu" else None,
            own_cores=used,
            in_line=in_line,
            threads=getattr(run.machine, "threads", None) if kind == "cpu" else None,
            growth=tuple(run.growth) if run.watched else (),
            swelling=swelling(run) if run.watched else None,
            trace=trace,
            witnesses=witnesses(run) if trace is None else (),
            padding=run.padding or 0.0,
            xray=xray,
            knobs=run.pipeline.to_dict(),
            cores=run.machine.cpu_cores,
            lines=run.lines if getattr(run, "samples_of_lines", None) else None,
            loop=of_run(run),
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
        return len(self.matrix) if self.matrix.any() else 0  # stamps may show no time

    def _pauses(self) -> np.ndarray:
        """Return how much each step's compute exceeds an ordinary one, s; 0 where by little."""
        # On a CPU only time of the model's own thread counts: to lose the core is no pause of ours
        compute = np.where(np.isnan(self.own), self.compute, np.fmin(self.compute, self.own))
        compute = compute / self.size
        excess, cycle = np.zeros(len(compute)), self.known.knobs.get("accumulation_steps") or 1
        for place in range(min(cycle, len(compute))):  # a step that updates is a heavier one
            some = compute[place::cycle]
            limit = limits.PAUSE * np.quantile(some, limits.ORDINARY)
            excess[place::cycle] = np.where(some > limit, some - limit / limits.PAUSE, 0.0)
        return excess * self.size

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
            wait_us=float(wait.mean() * 1e6),
            body=self.known.loop.shares(rows) if self.known.loop else {},
        )


def _sound(seen: Any) -> dict[str, Any]:
    """Return the x-ray's numbers where all that the rules need is among them, else nothing."""
    numbers = {name: n for name, n in (seen or {}).items() if type(n) in (int, float)}
    return numbers if numbers.keys() >= XRAY_NUMBERS else {}


def cores_used(run: Any) -> tuple[float | None, ...]:
    """Return the cores that the run used while it trained, all other programs, and in line for."""
    end = run.stamps[-1, 5] if run.steps else 0.0
    inside = [s for s in run.telemetry if 0 < run.seconds(s["t_ns"]) <= end]
    rows = [[s.get(name) for name in ("own_cpu", "cpu", "cpus", "line_cpu")] for s in inside]
    rows = [row for row in rows if None not in row[:3]]
    if not rows:
        return None, None, None
    used, everyone = (float(np.mean([row[i] * row[2] for row in rows])) for i in range(2))
    line = [row[3] * row[2] for row in rows if row[3] is not None]
    return used, max(0.0, everyone - used), float(np.mean(line)) if line else None


def swelling(run: Any) -> tuple[float, float] | None:
    """Return the memory (GiB) of a run's processes, early and late, where it rose to the end."""
    held = [s["rss_gib"] for s in run.telemetry if isinstance(s.get("rss_gib"), float)]
    if len(held) < limits.MEMORY_READINGS:
        return None
    fifths = [float(np.median(part)) for part in np.array_split(held, 5)]
    rose = fifths[-1] - fifths[1]  # the first fifth is the start: workers, caches, the allocator
    steady = all(later > earlier for earlier, later in zip(fifths[1:], fifths[2:], strict=False))
    return (fifths[1], fifths[-1]) if steady and rose >= limits.SWELLS * fifths[1] else None


def of_trace(breakdown: Any) -> Facts:
    """Return the facts of a profiler trace, from its `Breakdown`."""
    s, on_gpu, step_us = breakdown.shares, breakdown.device_kind == "gpu", breakdown.step_us
    seen = breakdown.busy.get("comm_busy")  # else the host's own collectives (Gloo) are all
    exposed = min(breakdown.busy["exposed_comm"] if seen else 1.0, s["communication"])
    hidden = s["communication"] - exposed  # on a GPU it is being issued, on a CPU operators run
    host = min(breakdown.host_work_us / step_us, s["other"])
    waits = s["runtime"] + s["other"] - host + (s["cpu_exec"] + hidden if on_gpu else 0.0)
    # No cure for launches shortens the hardware's own hand-over from kernel to kernel
    hand_over = min((breakdown.idle["kernel_wait_us"] or 0.0) / step_us, waits)
    source = f"profiler trace {breakdown.source}, {breakdown.steps} steps"
    shares = {
        "wait": s["dataloader"],
        "copy": s["memcpy"] + s["memset"],
        "compute": s["kernel"] if on_gpu else s["cpu_exec"] + hidden,
        "launch": waits - hand_over,
        "other": 0.0,
        "communication": exposed,
        "host": host,
        "hand_over": hand_over,
    }
    compute_us = step_us * shares["compute"]
    return Facts(breakdown.device_kind, source, source, shares, compute_us=compute_us,
                 trace=breakdown, from_trace=True)  # fmt: skip


def of_traces(ranks: Any) -> Facts:
    """Return the facts of a job from its `RankTraces`.

    What a rank loses more than the best, the others spend waiting for it in collectives.
    """
    each = [of_trace(rank) for rank in ranks]
    shares = {name: min(facts.shares[name] for facts in each) for name in each[0].shares}
    for name in ("communication", "compute"):
        shares[name] = float(np.mean([facts.shares[name] for facts in each]))
    source = f"profiler traces {ranks.source}, {len(each)} ranks"
    return replace(each[0], source=source, looked_at=each[0].source, shares=shares, ranks=ranks)
