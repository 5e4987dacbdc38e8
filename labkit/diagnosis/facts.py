"""The facts that the rules of the diagnosis look at, and the findings that they yield.

A step's time belongs to the first of these that was going on: the device computes, a copy to it
runs, the host waits for data, issues work (launch), or does something else between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.card_formats import tensor_formats
from labkit.diagnosis.hot_lines import Line, Lines
from labkit.diagnosis.instruments import Witness, throttled, witnesses
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.loop_body import Loop, of_run
from labkit.diagnosis.prediction import (
    Prediction,
    Workers,
    recommend_prefetch,
    recommend_workers,
    workers_from_times,
)
from labkit.diagnosis.remedies import Remedy, remedies
from labkit.diagnosis.run_costs import cores_used, launchers_in_line
from labkit.results.result import Result, Table
from labkit.results.step_classes import CLASSES, split_steps

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
NOTEBOOKS = {
    "02": "02_sawtooth_diagnosis.ipynb",
    "03": "03_dataloader_tuning.ipynb",
    "04": "04_batch_sizing.ipynb",
    "05": "05_mixed_precision.ipynb",
    "07": "07_compile_and_kernels.ipynb",
    "09": "09_beyond_one_gpu.ipynb",
}
# The section that teaches the cure, of a cause or else of a bottleneck: notebook, heading
LESSONS = {
    "input": ("03", "1. Workers, on real work"),
    "stalls": ("03", "4. A queue that rides over a stall"),
    "workers_restart": ("03", "5. The start of every epoch"),
    "item": ("03", "6. A lean `__getitem__`"),
    "collate": ("03", "6. A lean `__getitem__`"),
    "transfer": ("03", "7. Pinned memory, and what it costs"),
    "launch": ("07", "3. Hundreds of tiny kernels"),
    "neighbour": ("03", "1. Workers, on real work"),
    "host": ("02", "8. Which line costs the time?"),
    "memory_bandwidth": ("07", "1. Count the bytes"),
    "precision": ("05", "3. A training step in each format"),
    "communication": ("09", "3. `no_sync`: do not exchange what nobody uses"),
    "straggler": ("09", "4. One rank is short of data"),
    "compute": ("04", "1. What a larger batch buys"),
    "padding": ("04", "4. Text: the padding in a batch"),
}
AT_MOST = 2.0  # a larger gain that only the lost share bounds is not stated: it seldom comes
# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2
XRAY_NUMBERS = {"steps", "window_us", "gap_us", "tiny_us", "tiny_ops", "elementwise_us",
                "fusible_us"}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time, or the reason why no verdict is given."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    cause: str  # which rule found it, in a word or two
    evidence: str  # what was measured, by which instrument, against which threshold
    change: str  # what to change, in words
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    rank: int | None = None  # of several ranks, the one to blame
    lines: tuple[Line, ...] = ()  # of the user's code, the costliest first
    remedies: tuple[Remedy, ...] = ()  # of the advice, what a program can do
    code: str = ""  # what to type for the first of them, in plain PyTorch
    expected: tuple[float, float, float] | None = None  # gain of the first: value, low, high
    # Whether all of the loss goes where the advice is followed, so that it bounds the gain
    bounds: bool = False

    @property
    def lesson(self) -> tuple[str, str] | None:
        """The notebook's file and the heading of the section that teaches the cure."""
        key = next((key for key in (self.cause, self.name) if key in LESSONS), None)
        if key is None or not self.lost_share:
            return None
        number, heading = LESSONS[key]
        return NOTEBOOKS[number], heading

    @property
    def link(self) -> str:
        """The section as an address in the folder of the notebooks; "" without one."""
        return f"{self.lesson[0]}#{self.lesson[1].replace(' ', '-')}" if self.lesson else ""

    @property
    def expectation(self) -> str:
        """What the advice should bring, as far as that is known; "" where nothing is lost."""
        if not self.lost_share:
            return ""
        if self.expected:
            value, low, high = self.expected
            return f"Expect {value:.1f}x the throughput ({low:.1f}x to {high:.1f}x)."
        most = 1 / (1 - min(self.lost_share, 0.98))
        if self.bounds and most <= AT_MOST:
            return f"Expect {most:.1f}x the throughput at most."
        how = "`labkit tune`" if self.name == "input" else "a run before and after"
        return f"What it brings is unknown: measure it with {how}."

    @property
    def advice(self) -> str:
        """What to change, what to expect of it, and which section teaches it."""
        parts = [self.change, self.expectation]
        if self.lesson:
            number, heading = self.lesson[0][:2], self.lesson[1]
            parts.append(f"See notebook {number}, section {heading.rstrip('?')}.")
        return " ".join(filter(None, parts))

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        several = {key: [x.to_dict() for x in getattr(self, key)] for key in ("lines", "remedies")}
        values = {name: value for name, value in vars(self).items() if name != "bounds"}
        more = {"advice": self.advice, "lesson": self.link}
        return {**values, "lost_share": round(self.lost_share, 4), **several, **more}


def loss(
    name: str, cause: str, lost: float, seen: str, source: str, change: str,
    rank: int | None = None, lines: tuple[Line, ...] = (), changes: Any = (), bounds: bool = False,
) -> Finding:  # fmt: skip
    """Return a loss as a finding.

    `changes` are the advice as data, each {knob: value}, the one to try first in front. `bounds`:
    the change removes the loss, and no more.
    """
    part = min(max(lost, 0.0), 0.98)
    evidence = f"{seen} ({source}; threshold {limits.WORTH_NAMING[name]:.0%})."
    found = remedies(changes, part)
    return Finding(name, cause, evidence, change, lost, rank, lines, found, bounds=bounds)


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
    launchers_in_line: float | None = None  # time in which what launches kernels had no core
    ahead: float = 0.0  # time in which a GPU worked on what had been issued in full
    queued_ms: float | None = None  # from issuing a step's compute to its start on a GPU
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
    # How the user's script writes the loop; None of a pipeline, whose script is ours
    code: LoopCode | None = None
    loop: Loop | None = None  # what a watched loop shows beyond its stamps
    body: dict[str, float] = field(default_factory=dict)  # part of its body that is no training
    workers: Workers | None = None  # the recommended number, where it can be told
    prefetch: tuple[int, Prediction] | None = None  # a deeper queue that helps against stalls
    formats: tuple[str, ...] | None = None  # of 16 bits, on Tensor Cores; None: card unknown
    trains: bool = True  # rather than only infers
    trainer: bool = False  # whether the loop is that of Hugging Face's Trainer
    has_workers: bool | None = None  # of a trace, whether its loader has workers


# Columns of `Evidence.sums`, behind the classes of a step
PAUSES, TIMED, LOST, STEPS, SAMPLED = range(len(CLASSES), len(CLASSES) + 5)


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
        lines = run.lines if getattr(run, "samples_of_lines", None) else None
        worth = WORTH_A_LOOK * self.matrix.sum()
        waits = self.wait.sum() > worth
        stolen = np.nansum(self.compute - np.fmin(self.compute, self.own))
        crowded = run.pipeline.num_workers and kind == "cpu" and stolen > worth
        launching = launchers_in_line(run) if kind == "gpu" else None
        crowded = crowded or (launching or 0.0) > limits.WORTH_NAMING["launch"] / 2
        capability = getattr(run.machine, "compute_capability", None)
        self.known = Facts(
            kind=kind,
            looked_at=f"x-ray of {xray['steps']} steps" if xray else "x-ray",
            foreign_cores=foreign,
            throttled=throttled(run) if kind == "gpu" else None,
            own_cores=used,
            in_line=in_line,
            launchers_in_line=launching,
            ahead=run.busy_at_least or 0.0,
            queued_ms=run.queued_ms,
            threads=getattr(run.machine, "threads", None) if kind == "cpu" else None,
            growth=tuple(run.growth) if run.watched else (),
            swelling=swelling(run) if run.watched else None,
            trace=trace,
            witnesses=witnesses(run) if trace is None else (),
            padding=run.padding or 0.0,
            xray=xray,
            knobs=run.pipeline.to_dict(),
            cores=run.machine.cpu_cores,
            lines=lines,
            code=LoopCode.of(run.loop_code) if run.watched else None,
            loop=of_run(run),
            stalls=self._stalls(),
            workers=recommend_workers(run, lines) if waits or crowded else None,
            prefetch=recommend_prefetch(run) if waits and run.pipeline.num_workers else None,
            formats=tensor_formats(run.machine.name, capability) if kind == "gpu" else None,
            trainer=bool(run.watched) and run.trainer,
        )
        if self.known.loop and (body := self.known.loop.lines.body):
            self.known = replace(self.known, trains=bool({"backward", "optimizer"} & body.keys()))
        self.pauses = self._pauses()
        self.sums = self._sums()
        # The part (0 to 1) of what was taken from the model's thread that our workers took
        self.blame = 1.0 if self.known.knobs.get("num_workers") else 0.0
        if self.blame and foreign is not None and len(self):
            stolen = self._stolen(self.sums.sum(axis=0)) or 0.0
            running = (1 - stolen) * self.compute.sum() / self.matrix.sum()
            workers = max(0.0, used - float(running))
            self.blame = workers / max(workers + foreign, 1e-9)

    def __len__(self) -> int:
        return len(self.matrix) if self.matrix.any() else 0  # stamps may show no time

    def _stalls(self) -> float:
        """Return the share (0 to 1) of the waiting that falls into the worst tenth of the steps."""
        total = self.wait.sum()
        worst = np.sort(self.wait)[-max(1, round(limits.WORST_STEPS * len(self.wait))) :]
        return float(worst.sum() / total) if total > 0 else 0.0

    def _sums(self) -> np.ndarray:
        """Return (rows, columns) of what the facts are sums of; a row is a step or a block of them.

        The columns: the classes of a step, pauses, the compute of steps whose thread was timed and
        what of it the thread did not run, s; steps; of a watched loop the sampled shares. A long
        run has `MOST_DRAWN` blocks at most, so that drawing it anew costs no more than a short one.
        """
        timed = np.where(np.isnan(self.own), 0.0, self.compute)
        lost = np.where(np.isnan(self.own), 0.0, np.maximum(self.compute - self.own, 0.0))
        columns = [self.matrix, self.pauses, timed, lost, np.ones(len(self.matrix))]
        if self.known.loop:
            columns += [self.known.loop.sampled, self.known.loop.body]
        table = np.column_stack(columns)
        size = -(-len(table) // limits.MOST_DRAWN)
        return np.add.reduceat(table, np.arange(0, len(table), size)) if size > 1 else table

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

    def _stolen(self, sums: np.ndarray) -> float | None:
        """Return the share of the compute in which its thread did not run; None if never read."""
        if self.known.kind != "cpu" or sums[TIMED] <= 0:
            return None
        return float(sums[LOST] / sums[TIMED])

    def facts(self, rows: np.ndarray | None = None) -> Facts:
        """Return the facts of all steps, or of the given rows of `sums` (a resampled run)."""
        sums = (self.sums if rows is None else self.sums[rows]).sum(axis=0)
        classes = sums[: len(CLASSES)]
        total = float(classes.sum()) or 1.0  # of drawn steps, none need have taken any time
        wait, compute = float(classes[0]), float(classes[2])
        pauses, steps = float(sums[PAUSES]), float(sums[STEPS])
        stolen = self._stolen(sums)
        lost = (stolen or 0.0) * compute / total
        ours = stolen is not None and self.known.knobs.get("num_workers")
        return replace(
            self.known,
            source=f"step stamps, {steps:.0f} steps",
            shares=dict(zip(CLASSES, (classes / total).tolist(), strict=True)),
            pauses=pauses / total,
            taken_by_workers=lost * self.blame if ours else None,
            taken_by_others=lost - lost * self.blame,
            compute_us=compute / steps * 1e6,
            wait_us=wait / steps * 1e6,
            body=self.known.loop.shares(*sums[SAMPLED:]) if self.known.loop else {},
        )


def _sound(seen: Any) -> dict[str, Any]:
    """Return the x-ray's numbers where all that the rules need is among them, else nothing."""
    numbers = {name: n for name, n in (seen or {}).items() if type(n) in (int, float)}
    return numbers if numbers.keys() >= XRAY_NUMBERS else {}


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
    wait_us = step_us * shares["wait"]
    workers = None
    if wait_us and not breakdown.loader_workers:  # else only how long they make it wait is known
        rest_us = max(step_us - wait_us, 1.0)
        workers = workers_from_times(wait_us / 1e6, rest_us / 1e6, None)
    return Facts(
        breakdown.device_kind,
        source,
        source,
        shares,
        compute_us=step_us * shares["compute"],
        trace=breakdown,
        from_trace=True,
        code=LoopCode(),
        workers=workers,
        formats=tensor_formats(breakdown.device_name, breakdown.compute_capability),
        trains=breakdown.trains is not False,
        has_workers=breakdown.loader_workers,
    )


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
