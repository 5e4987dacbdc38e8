"""Make the `Evidence` of a run, or of a profiler's trace."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.card_formats import tensor_formats
from labkit.diagnosis.evidence import Evidence, Kernels, WorkerEvidence, Xray
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.loop_body import of_run
from labkit.diagnosis.loop_rules import ELSEWHERE
from labkit.diagnosis.recommendation import (
    recommend_prefetch,
    recommend_workers,
    workers_from_times,
)
from labkit.diagnosis.run_costs import cores_used, launchers_in_line, readings
from labkit.diagnosis.trace_breakdown import Breakdown, RankTraces
from labkit.diagnosis.witnesses import throttled, witnesses
from labkit.results import wall_shares
from labkit.results.record import Event
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
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples.

    `sums` (rows, columns) holds what the evidence is a sum of; a row is one or more steps. The
    columns: the classes of a step, pauses, the compute of steps whose thread was timed and what of
    it the thread did not run, s; steps; of a watched loop the sampled shares. A long run has
    `MOST_DRAWN` blocks at most, so that drawing it anew costs no more than a short one.
    """

    def __init__(self, run: Run, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        first = max(run.warmup - 1, 0)
        matrix = split_steps(run.stamps[first:])  # (steps, classes), s
        self.steps = len(matrix) if matrix.any() else 0  # stamps may show no time
        self.seconds = float(matrix.sum())
        compute = matrix[:, 2]
        own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        ran = np.fmin(compute, own)
        # On a CPU only time of the model's own thread counts: to lose the core is no pause of ours
        pauses = _pauses(ran, run.pipeline.to_dict().get("accumulation_steps") or 1)
        timed = np.where(np.isnan(own), 0.0, compute)
        columns = [matrix, pauses, timed, compute - ran, np.ones(len(matrix))]
        self.known = _known(run, matrix, float((compute - ran).sum()), ranks_cores)
        if self.known.loop:
            columns += [self.known.loop.sampled, self.known.loop.body]
        table = np.column_stack(columns)
        size_of_block = max(1, -(-len(table) // limits.MOST_DRAWN))
        blocks = np.arange(0, len(table), size_of_block)
        self.sums = np.add.reduceat(table, blocks) if len(table) else table
        self.blame = self._blame()

    def __len__(self) -> int:
        return self.steps

    def _blame(self) -> float:
        """Return the part (0 to 1) of what was taken from the model's thread that workers took."""
        known = self.known
        if not known.num_workers:
            return 0.0
        if known.foreign_cores is None or not self.steps:
            return 1.0
        sums = self.sums.sum(axis=0)
        classes = sums[: len(CLASSES)]
        running = (1 - (self._stolen(sums) or 0.0)) * classes[2] / classes.sum()
        workers = max(0.0, (known.own_cores or 0.0) - float(running))
        return workers / max(workers + known.foreign_cores, 1e-9)

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


def _known(run: Run, matrix: np.ndarray, lost_s: float, ranks_cores: float) -> Evidence:
    """Return what does not change from one resampling of the steps to the next.

    Of the compute in `matrix` (steps, classes) its thread did not run for `lost_s`.
    """
    machine = run.machine
    on_gpu = machine.kind == "gpu"
    wait = matrix[:, 0]
    used, foreign, in_line = cores_used(run)
    launchers = launchers_in_line(run) if on_gpu else None
    lines = run.lines if run.samples_of_lines else None
    worth = WORTH_A_LOOK * matrix.sum()
    waits = wait.sum() > worth
    crowded = run.pipeline.num_workers and not on_gpu and lost_s > worth
    crowded = crowded or (launchers or 0.0) > limits.WORTH_NAMING["launch"] / 2
    deeper = recommend_prefetch(run) if waits and run.pipeline.num_workers else None
    xray = _xray(run.xray_facts)
    kernels = _kernels(run.xray) if on_gpu else None
    loop = of_run(run)
    parts = loop.lines.body.keys() if loop else set()
    throttled_share, throttled_by = (throttled(run) if on_gpu else None) or (0.0, None)
    wall = run.wall_shares
    early, late = _swelling(run) if run.watched else (None, None)
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    return Evidence(
        kind=machine.kind,
        inside=f"x-ray of {xray.steps:g} steps" if xray else "x-ray",
        stall_share=float(worst.sum() / wait.sum()) if wait.any() else 0.0,
        padding_share=run.padding,
        quick_compute_us=_quick_us(matrix[:, 2]),
        queued_ms=run.queued_ms,
        ahead_share=run.busy_at_least or 0.0,
        launches_only=run.launches_only,
        cores=machine.cpu_cores,
        own_cores=used,
        foreign_cores=None if foreign is None else max(0.0, foreign - ranks_cores),
        waiting_threads=in_line,
        threads=None if on_gpu else machine.threads,
        launchers_share=launchers,
        others_on_gpu=_others_on_gpu(run) if on_gpu else None,
        throttled_share=throttled_share,
        throttled_by=throttled_by,
        xray=xray,
        kernels=kernels,
        witnesses=witnesses(run) if kernels is None else (),
        lines=lines,
        loop=loop,
        growth=tuple(run.growth) if run.watched else (),
        early_gib=early,
        late_gib=late,
        workers=WorkerEvidence.of(run),
        loop_share=wall and wall.share(wall_shares.TRAINING) + wall.share(wall_shares.LOOP),
        elsewhere={part: wall.share(part) for part in ELSEWHERE} if wall else {},
        knobs=run.pipeline.to_dict(),
        code=LoopCode.of(run.loop_code) if run.watched else None,
        trainer=bool(run.watched and run.trainer),
        trains=not parts or bool({"backward", "optimizer"} & parts),
        formats=tensor_formats(machine.name, machine.compute_capability) if on_gpu else None,
        compiles=machine.compiles,
        advised=recommend_workers(run, lines) if waits or crowded else None,
        deeper_queue=deeper and deeper[0],
        headroom=_headroom(run.event("headroom")),
    )


def _quick_us(compute: np.ndarray) -> float | None:
    """Return how long a step computes that has the cores to itself, µs."""
    return float(np.quantile(compute, limits.QUICK)) * 1e6 if len(compute) else None


def _pauses(compute: np.ndarray, cycle: int) -> np.ndarray:
    """Return how much each step's compute exceeds an ordinary one; 0 where by little.

    One step in `cycle` updates the weights, and is a heavier one.
    """
    excess = np.zeros(len(compute))
    for place in range(min(cycle, len(compute))):
        some = compute[place::cycle]
        ordinary = np.quantile(some, limits.ORDINARY)
        excess[place::cycle] = np.where(some > limits.PAUSE * ordinary, some - ordinary, 0.0)
    return excess


def _xray(seen: Event | None) -> Xray | None:
    """Return the x-ray's numbers where all that the rules need is among them."""
    numbers = {name: each for name, each in (seen or {}).items() if type(each) in (int, float)}
    columns = fields(Xray)
    if not all(each.name in numbers or each.default is None for each in columns):
        return None
    return Xray(**{each.name: numbers[each.name] for each in columns if each.name in numbers})


def _kernels(trace: Breakdown | None) -> Kernels | None:
    """Return what a trace says of a GPU's kernels; None where it could not look into the device."""
    if trace is None or trace.device_kind != "gpu":
        return None
    return Kernels(
        kernel_us=trace.kernel_us,
        cuda_graphs=trace.cuda_graphs,
        tensor_core_share=trace.tensor_core_share or 0.0,
        eligible_share=trace.tensor_core_eligible_share,
        unaligned_share=_named_share(trace, UNALIGNED),
        moving_share=_named_share(trace, PASSES),
    )


def _named_share(trace: Breakdown, pattern: str) -> float | None:
    """Return the share of kernel time in kernels whose names match; None: no names are known."""
    kernels = trace.top_kernels
    if not kernels:
        return None
    spent_us = sum(kernel.total_us for kernel in kernels if re.search(pattern, kernel.name))
    return min(1.0, spent_us / trace.steps / max(trace.kernel_us, 1e-9))


def _headroom(seen: Event | None) -> tuple[float, float, float] | None:
    """Return what replay measured of a perfect loader, with its range; None where it did not."""
    if seen is None or None in (seen.get("factor"), seen.get("low"), seen.get("high")):
        return None
    return max(1.0, seen["factor"]), max(1.0, seen["low"]), max(1.0, seen["high"])


def _swelling(run: Run) -> tuple[float | None, float | None]:
    """Return the memory (GiB) of a run's processes, early and late, where it rose to the end."""
    held = [s["rss_gib"] for s in run.telemetry if isinstance(s.get("rss_gib"), float)]
    if len(held) < limits.MEMORY_READINGS:
        return None, None
    # The first fifth is the start: workers, caches
    fifths = [float(np.median(part)) for part in np.array_split(held, 5)[1:]]
    rose = np.all(np.diff(fifths) > 0) and fifths[-1] >= (1 + limits.SWELLS) * fifths[0]
    return (fifths[0], fifths[-1]) if rose else (None, None)


def _others_on_gpu(run: Run) -> float | None:
    """Return the share of the measured time in which others' kernels ran on the GPU.

    None where the driver does not tell it (MIG, older drivers). A process that only has a context
    there slows nobody down.
    """
    if not run.steps:
        return None
    start = run.stamps[max(run.warmup - 1, 0), 5]
    end = run.stamps[-1, 5]
    timed = [(at, s.get("others_sm")) for at, s in readings(run)]
    shares = [share for at, share in timed if start < at <= end and share is not None]
    return fmean(shares) if shares else None


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


def of_traces(ranks: RankTraces) -> Evidence:
    """Return the evidence of a job from the traces of its ranks.

    What a rank loses more than the best, the others spend waiting for it in collectives.
    """
    each = [of_trace(rank) for rank in ranks]
    late = ranks.straggler
    return replace(
        each[0],
        source=f"profiler traces {ranks.source}, {len(each)} ranks",
        late_rank=late,
        late_said="" if late is None else ranks.headline,
        wait_share=min(rank.wait_share for rank in each),
        copy_share=min(rank.copy_share for rank in each),
        launch_share=min(rank.launch_share for rank in each),
        outside_share=min(rank.outside_share for rank in each),
        communication_share=fmean(rank.communication_share for rank in each),
        compute_share=fmean(rank.compute_share for rank in each),
    )
