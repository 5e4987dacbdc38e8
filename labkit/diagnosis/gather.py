"""Make the `Evidence` of a run, or of a profiler's trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.card_formats import tensor_formats
from labkit.diagnosis.evidence import Evidence, Kernels, WorkerEvidence, Xray
from labkit.diagnosis.hot_lines import Lines
from labkit.diagnosis.instruments import throttled, witnesses
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.loop_body import of_run
from labkit.diagnosis.loop_rules import ELSEWHERE
from labkit.diagnosis.recommendation import (
    Workers,
    recommend_prefetch,
    recommend_workers,
    workers_from_times,
)
from labkit.diagnosis.run_costs import cores_used, launchers_in_line, readings
from labkit.diagnosis.trace_breakdown import Breakdown, RankTraces
from labkit.results.step_classes import CLASSES, split_steps

if TYPE_CHECKING:
    from labkit.results.run import Run

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2
# Kernels that only move data; a fused optimizer does in one pass what foreach does in many
PASSES = r"(?i)elementwise|multi_tensor_apply(?!.*fused)"
# CUTLASS ends a kernel's name in its alignment: 16-bit sizes in multiples of 8 run in `align8`
UNALIGNED = r"(?:tensorop|wmma|[hs]?16816|[hs]1688|h884).*_align[12]\b"
# Columns of `StepTable.sums`, behind the classes of a step
PAUSES, TIMED, LOST, STEPS, SAMPLED = range(len(CLASSES), len(CLASSES) + 5)


class StepTable:
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples."""

    def __init__(self, run: Run, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        self.ranks_cores = ranks_cores
        first = max(run.warmup - 1, 0)
        self.matrix = split_steps(run.stamps[first:])  # (steps, classes), s
        self.wait, _, self.compute, *_ = self.matrix.T
        self.own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        tokens = run.tokens[first + 1 :, 0]  # batches of text differ in length
        self.size = tokens / tokens.mean() if run.tokens_per_s else np.ones(len(tokens))
        self.known = self._known(run)
        self.sums = self._sums()
        self.blame = self._blame()

    def __len__(self) -> int:
        return len(self.matrix) if self.matrix.any() else 0  # stamps may show no time

    def _known(self, run: Run) -> Evidence:
        """Return what does not change from one resampling of the steps to the next."""
        kind = run.machine.kind
        on_gpu = kind == "gpu"
        used, foreign, in_line = cores_used(run)
        foreign = None if foreign is None else max(0.0, foreign - self.ranks_cores)
        launchers = launchers_in_line(run) if on_gpu else None
        advised, deeper = self._advice(run, launchers)
        xray = _xray(run.xray_facts)
        kernels = _kernels(run.xray) if on_gpu else None
        loop = of_run(run)
        parts = loop.lines.body.keys() if loop else ()
        others, came = others_on_gpu(run) if on_gpu else (None, 0)
        held = throttled(run) if on_gpu else None
        loop_share, elsewhere = _whole_time(run)
        early, late = _swelling(run) if run.watched else (None, None)
        capability = getattr(run.machine, "compute_capability", None)
        return Evidence(
            kind=kind,
            inside=f"x-ray of {xray.steps:g} steps" if xray else "x-ray",
            stall_share=self._stalls(),
            padding_share=run.padding,
            quick_compute_us=self._quick_compute_us(),
            queued_ms=run.queued_ms,
            ahead_share=run.busy_at_least or 0.0,
            launches_only=run.launches_only,
            cores=run.machine.cpu_cores,
            own_cores=used,
            foreign_cores=foreign,
            waiting_threads=in_line,
            threads=None if on_gpu else getattr(run.machine, "threads", None),
            launchers_share=launchers,
            others_on_gpu=others,
            came_onto_gpu=came,
            throttled_share=held[0] if held else 0.0,
            throttled_by=held[1] if held else None,
            xray=xray,
            kernels=kernels,
            witnesses=witnesses(run) if kernels is None else (),
            lines=_lines(run),
            loop=loop,
            growth=tuple(run.growth) if run.watched else (),
            early_gib=early,
            late_gib=late,
            workers=WorkerEvidence.of(run),
            loop_share=loop_share,
            elsewhere=elsewhere,
            knobs=run.pipeline.to_dict(),
            code=LoopCode.of(run.loop_code) if run.watched else None,
            trainer=bool(run.watched and run.trainer),
            trains=not parts or bool({"backward", "optimizer"} & set(parts)),
            formats=tensor_formats(run.machine.name, capability) if on_gpu else None,
            compiles=getattr(run.machine, "compiles", True),
            advised=advised,
            deeper_queue=deeper,
            headroom=_headroom(run),
        )

    def _quick_compute_us(self) -> float | None:
        """Return how long a step computes that has the cores to itself, µs."""
        return float(np.quantile(self.compute, limits.QUICK)) * 1e6 if len(self.compute) else None

    def _advice(self, run: Run, launchers: float | None) -> tuple[Workers | None, int | None]:
        """Return the recommended workers and queue, where waiting or full cores call for them."""
        worth = WORTH_A_LOOK * self.matrix.sum()
        waits = self.wait.sum() > worth
        stolen = np.nansum(self.compute - np.fmin(self.compute, self.own))
        crowded = run.pipeline.num_workers and run.machine.kind == "cpu" and stolen > worth
        crowded = crowded or (launchers or 0.0) > limits.WORTH_NAMING["launch"] / 2
        advised = recommend_workers(run, _lines(run)) if waits or crowded else None
        found = recommend_prefetch(run) if waits and run.pipeline.num_workers else None
        return advised, found[0] if found else None

    def _blame(self) -> float:
        """Return the part (0 to 1) of what was taken from the model's thread that workers took."""
        known = self.known
        if not known.num_workers:
            return 0.0
        if known.foreign_cores is None or not len(self):
            return 1.0
        stolen = self._stolen(self.sums.sum(axis=0)) or 0.0
        running = (1 - stolen) * self.compute.sum() / self.matrix.sum()
        workers = max(0.0, (known.own_cores or 0.0) - float(running))
        return workers / max(workers + known.foreign_cores, 1e-9)

    def _stalls(self) -> float:
        """Return the share (0 to 1) of the waiting that falls into the worst tenth of the steps."""
        total = self.wait.sum()
        count = max(1, round(limits.WORST_STEPS * len(self.wait)))
        worst = np.sort(self.wait)[-count:]
        return float(worst.sum() / total) if total > 0 else 0.0

    def _sums(self) -> np.ndarray:
        """Return (rows, columns) of what the evidence is a sum of; a row is one or more steps.

        The columns: the classes of a step, pauses, the compute of steps whose thread was timed and
        what of it the thread did not run, s; steps; of a watched loop the sampled shares. A long
        run has `MOST_DRAWN` blocks at most, so that drawing it anew costs no more than a short one.
        """
        untimed = np.isnan(self.own)
        timed = np.where(untimed, 0.0, self.compute)
        lost = np.where(untimed, 0.0, np.maximum(self.compute - self.own, 0.0))
        columns = [self.matrix, self._pauses(), timed, lost, np.ones(len(self.matrix))]
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
        excess = np.zeros(len(compute))
        cycle = int(self.known.knobs.get("accumulation_steps") or 1)
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

    def evidence(self, rows: np.ndarray | None = None) -> Evidence:
        """Return the evidence of all steps, or of the given rows of `sums` (a resampled run)."""
        sums = (self.sums if rows is None else self.sums[rows]).sum(axis=0)
        classes = sums[: len(CLASSES)]
        total = float(classes.sum()) or 1.0  # of drawn steps, none need have taken any time
        wait, copy, compute, launch, other = (classes / total).tolist()
        steps = float(sums[STEPS])
        stolen = self._stolen(sums)
        lost = (stolen or 0.0) * compute
        ours = stolen is not None and self.known.num_workers
        loop = self.known.loop
        return replace(
            self.known,
            source=f"step stamps, {steps:.0f} steps",
            wait_share=wait,
            copy_share=copy,
            compute_share=compute,
            launch_share=launch,
            other_share=other,
            pause_share=float(sums[PAUSES]) / total,
            stolen_by_workers=lost * self.blame if ours else None,
            stolen_by_others=lost * (1 - self.blame),
            compute_us=compute * total / steps * 1e6,
            wait_us=wait * total / steps * 1e6,
            body=loop.shares(*sums[SAMPLED:]) if loop else {},
        )


def _lines(run: Run) -> Lines | None:
    return run.lines if getattr(run, "samples_of_lines", None) else None


def _xray(seen: Mapping[str, Any] | None) -> Xray | None:
    """Return the x-ray's numbers where all that the rules need is among them."""
    names = {field.name for field in fields(Xray)}
    numbers = {n: value for n, value in (seen or {}).items() if type(value) in (int, float)}
    known = {name: value for name, value in numbers.items() if name in names}
    needed = {field.name for field in fields(Xray) if field.default is not None}
    return Xray(**known) if needed <= known.keys() else None


def _kernels(trace: Breakdown | None) -> Kernels | None:
    """Return what a trace says of a GPU's kernels; None where it could not look into the device."""
    if trace is None or trace.device_kind != "gpu":
        return None
    names = [(kernel.name, kernel.total_us) for kernel in trace.top_kernels]
    return Kernels(
        kernel_us=trace.kernel_us,
        cuda_graphs=trace.cuda_graphs,
        tensor_core_share=trace.tensor_core_share or 0.0,
        eligible_share=trace.tensor_core_eligible_share,
        unaligned_share=_named_share(trace, names, UNALIGNED),
        moving_share=_named_share(trace, names, PASSES),
    )


def _named_share(trace: Breakdown, names: list[tuple[str, float]], pattern: str) -> float | None:
    """Return the share of kernel time in kernels whose names match; None: no names are known."""
    if not names:
        return None
    spent = sum(time_us for name, time_us in names if re.search(pattern, name))
    return min(1.0, spent / trace.steps / max(trace.kernel_us, 1e-9))


def _headroom(run: Run) -> tuple[float, float, float] | None:
    """Return what replay measured of a perfect loader, with its range; None where it did not."""
    seen = run.event("headroom") or {}
    ends = [seen.get(name) for name in ("factor", "low", "high")]
    value, low, high = (None if each is None else max(1.0, each) for each in ends)
    return None if value is None or low is None or high is None else (value, low, high)


def _whole_time(run: Run) -> tuple[float | None, dict[str, float]]:
    """Return the share of a script's time in its training loop, and those of its other parts."""
    seen = getattr(run, "wall_shares", None)
    if not seen:
        return None, {}
    names = {part.part for part in seen.parts}
    loop = seen.share("training loop") + seen.share("loop")
    return loop, {name: seen.share(name) for name in ELSEWHERE.keys() & names}


def _swelling(run: Run) -> tuple[float | None, float | None]:
    """Return the memory (GiB) of a run's processes, early and late, where it rose to the end."""
    held = [s["rss_gib"] for s in run.telemetry if isinstance(s.get("rss_gib"), float)]
    if len(held) < limits.MEMORY_READINGS:
        return None, None
    fifths = [float(np.median(part)) for part in np.array_split(held, 5)]
    early, late = fifths[1], fifths[-1]  # the first fifth is the start: workers, caches
    steady = all(later > earlier for earlier, later in zip(fifths[1:], fifths[2:], strict=False))
    rose = steady and late - early >= limits.SWELLS * early
    return (early, late) if rose else (None, None)


def others_on_gpu(run: Run) -> tuple[float | None, int]:
    """Return the share of the measured time in which others' kernels ran on the GPU, and who came.

    The share is None where the driver does not tell it (MIG, older drivers). A process that only
    has a context there slows nobody down; where no share is known, one counts that came after the
    warm-up.
    """
    if not run.steps:
        return None, 0
    timed = readings(run)
    start = run.stamps[max(run.warmup - 1, 0), 5]
    end = run.stamps[-1, 5]
    shares = [
        s["others_sm"] for at, s in timed if start < at <= end and s.get("others_sm") is not None
    ]
    counts = [(at, s["others"]) for at, s in timed if at <= end and s.get("others") is not None]
    before = [count for at, count in counts if at <= start] or [count for _, count in counts[:1]]
    came = max((count for _, count in counts), default=0) - max(before, default=0)
    return (fmean(shares) if shares else None), came


def of_trace(breakdown: Breakdown) -> Evidence:
    """Return the evidence of a profiler's trace."""
    shares = breakdown.shares
    step_us = breakdown.step_us
    on_gpu = breakdown.device_kind == "gpu"
    seen = breakdown.busy.get("comm_busy")  # else the host's own collectives (Gloo) are all
    exposed = breakdown.busy["exposed_comm"] if seen else 1.0
    exposed = min(exposed, shares["communication"])
    hidden = shares["communication"] - exposed  # on a GPU it is being issued, on a CPU it runs
    host = min(breakdown.host_work_us / step_us, shares["other"])
    waits = shares["runtime"] + shares["other"] - host
    if on_gpu:
        waits += shares["cpu_exec"] + hidden
    # No cure for launches shortens the hardware's own hand-over from kernel to kernel
    hand_over = min((breakdown.idle["kernel_wait_us"] or 0.0) / step_us, waits)
    compute = shares["kernel"] if on_gpu else shares["cpu_exec"] + hidden
    source = f"profiler trace {breakdown.source}, {breakdown.steps} steps"
    wait_us = step_us * shares["dataloader"]
    advised = None
    if wait_us and not breakdown.loader_workers:  # else only how long they make it wait is known
        rest_us = max(step_us - wait_us, 1.0)
        advised = workers_from_times(wait_us / 1e6, rest_us / 1e6, None)
    return Evidence(
        kind=breakdown.device_kind,
        source=source,
        inside=source,
        wait_share=shares["dataloader"],
        copy_share=shares["memcpy"] + shares["memset"],
        compute_share=compute,
        launch_share=waits - hand_over,
        communication_share=exposed,
        outside_share=host,
        compute_us=step_us * compute,
        kernels=_kernels(breakdown),
        code=LoopCode(),
        trains=breakdown.trains is not False,
        formats=tensor_formats(breakdown.device_name, breakdown.compute_capability),
        advised=advised,
        from_trace=True,
        loader_workers=breakdown.loader_workers,
        outside_where=breakdown.host_where,
    )


SHARES = ("wait", "copy", "launch", "communication", "compute", "outside")


def of_traces(ranks: RankTraces) -> Evidence:
    """Return the evidence of a job from the traces of its ranks.

    What a rank loses more than the best, the others spend waiting for it in collectives.
    """
    each = [of_trace(rank) for rank in ranks]
    shares = {}
    for name in SHARES:
        values = [getattr(evidence, f"{name}_share") for evidence in each]
        shared = name in ("communication", "compute")
        shares[f"{name}_share"] = float(np.mean(values)) if shared else min(values)
    late = ranks.straggler
    return replace(
        each[0],
        source=f"profiler traces {ranks.source}, {len(each)} ranks",
        late_rank=late,
        late_said="" if late is None else ranks.headline,
        **shares,
    )
