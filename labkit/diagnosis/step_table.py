"""From a run to its `Evidence`: what all of it shows, and its measured steps or a draw of them."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import (
    Batch,
    CardEvidence,
    Epochs,
    Evidence,
    WorkerEvidence,
    Xray,
)
from labkit.diagnosis.hot_lines import lines_of, loop_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.trace_evidence import kernels_of
from labkit.diagnosis.wall_shares import shares_of
from labkit.diagnosis.witnesses import heat_of, witness_of
from labkit.instruments.card_formats import tensor_formats
from labkit.prediction.prediction import recommended
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData
from labkit.stamps.record import Event
from labkit.stamps.step_classes import CLASSES, split_steps
from labkit.traces.read import xray_of

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2


class StepTable:
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples.

    A row of `table` is the sum over a step, or over a few: its time by class (s), and the number of
    steps.
    """

    def __init__(self, run: RunData, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        parts = split_steps(run.stamps[max(run.warmup - 1, 0) :])  # (steps, classes), s
        self.steps = len(parts) if parts.any() else 0  # stamps may show no time
        self.seconds = float(parts.sum())
        self.known = known_of(run, parts, ranks_cores)
        table = np.column_stack([parts, np.ones(len(parts))])
        blocks = np.arange(0, len(parts), max(1, -(-len(parts) // limits.MOST_DRAWN)))
        self.rows = len(blocks)
        self.table = np.add.reduceat(table, blocks) if self.rows else table

    def evidence(self, rows: np.ndarray | slice = slice(None)) -> Evidence:
        """Return the evidence of all steps, or of the given rows (a resampled run)."""
        *spent_s, steps = self.table[rows].sum(axis=0).tolist()
        whole_s = sum(spent_s) or 1.0  # drawn steps may have taken no time
        shares = {f"{part}_share": s / whole_s for part, s in zip(CLASSES, spent_s, strict=True)}
        return self.known.but(
            source=f"step stamps, {steps:.0f} steps",
            wait_us=spent_s[0] / steps * 1e6,
            compute_us=spent_s[2] / steps * 1e6,
            **shares,
        )


def known_of(run: RunData, parts: np.ndarray, ranks_cores: float) -> Evidence:
    """Return what does not change from one resampling of the steps to the next.

    `parts` is (steps, classes), s: the time of each measured step.
    """
    machine, wait = run.machine, parts[:, 0]
    is_gpu = machine.kind == "gpu"
    loop = loop_of(run)
    body = loop.lines.body if loop else {}
    seen, job = run.xray_facts, run.event("job") or {}
    replayed = (run.event("headroom") or {}).get("factor")
    spare = (run.event("spare_card") or {}).get("name")
    is_simulated = not run.watched and wait.sum() > WORTH_A_LOOK * parts.sum()
    workers = run.pipeline.num_workers
    asked, ready, _, done = run.host_ns[run.warmup :].T
    return Evidence(
        kind=machine.kind,
        stall_share=_stall_share(wait),
        padding_share=run.padding,
        launches_only=run.launches_only,
        use=CoreUse.of(run, ranks_cores),
        card=_card(run) if is_gpu else CardEvidence(),
        mfu=None if run.launches_only else run.mfu,
        peak=run.peak,
        xray=Xray(**{name: seen.get(name) for name in Xray.__annotations__}) if seen else None,
        kernels=kernels_of(xray_of(run)) if is_gpu else None,
        lines=lines_of(run),
        loop=loop,
        body=body,
        workers=_workers(run),
        epochs=_epochs(run),
        whole=shares_of(run),
        host_wait_share=float((ready - asked).sum() / max((done - asked).sum(), 1)),
        growth=tuple(each for each in run.fact_of("growth", "found", default=()) if each["graph"]),
        weights_dtype=job.get("weights_dtype"),
        batch=_batch(run, job),
        # not worth a word to what computes no model
        spare_card=None if is_gpu or not job.get("weights_dtype") else spare,
        knobs=run.pipeline.to_dict(),
        code=LoopCode.of(run.loop.get("code"), job, bool(run.loop.get("trainer"))),
        trains=not body or bool({"backward", "optimizer"} & body.keys()),
        formats=tensor_formats(machine.name, machine.compute_capability) if is_gpu else None,
        compiles=not machine.compile_lacks,
        advised=recommended(run, "num_workers") if is_simulated else None,
        deeper_queue=recommended(run, "prefetch_factor") if is_simulated and workers else None,
        headroom=replayed and max(1.0, replayed),
    )


def _stall_share(wait: np.ndarray) -> float:
    """Return the share of the waiting (s, by step) that the worst steps have."""
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    return float(worst.sum() / wait.sum()) if wait.any() else 0.0


def _batch(run: RunData, job: Event) -> Batch:
    """Return what is known of a run's batches."""
    sizes = run.each("bytes")
    sizes = sizes[np.isfinite(sizes)]
    median = float(np.median(sizes)) if len(sizes) else None
    # Not of a prefetcher or Accelerate's loader, which move there what workers have made
    is_plain = run.watched == "DataLoader" and not run.pipeline.num_workers
    on_gpu = bool(job.get("batch_on_gpu")) and is_plain
    return Batch(dtype=job.get("batch_dtype"), bytes=median, on_gpu=on_gpu)


def _workers(run: RunData) -> WorkerEvidence | None:
    """Return what a run recorded of its workers; None where it recorded nothing, or has none."""
    seen = run.workers
    rows = seen.rows[seen.rows.index >= 0]
    if rows.empty:
        return None
    hang = seen.hang
    return WorkerEvidence(
        workers=len(rows),
        cpu_share=rows.cpu_share.mean(),
        idle_share=rows.idle_share.mean(),
        library_threads=int(rows.library_threads.max()),
        hang=None if hang is None or hang.worker is None else hang,  # the loop's own
        slowest=seen.slowest,
    )


def _epochs(run: RunData) -> Epochs:
    """Return what the loop waited for at the start of its later epochs, and in the first one."""
    firsts = sorted({step for step in run.first_steps if step < run.steps})
    if len(firsts) < 2:
        return Epochs()
    wait_s = np.diff(run.host_ns[:, :2])[:, 0] / 1e9  # from asking for a batch to having it
    second, wall_s = firsts[1], max(run.length_s, 1e-9)
    longer_s = (wait_s[1:second] - wait_s[second:].mean()).sum()
    is_known = second >= limits.MIN_STEPS
    return Epochs(
        starts=float(wait_s[firsts[1:]].sum() / wall_s),
        first=max(0.0, float(longer_s / wall_s)) if is_known else 0.0,
    )


def _card(run: RunData) -> CardEvidence:
    """Return what a GPU showed."""
    heat = heat_of(run)
    return CardEvidence(
        # None where the driver does not tell it (MIG, older drivers). A process that only has a
        # context there slows nobody down
        others_share=run.mean_reading("others_sm"),
        heat=heat,
        witness=witness_of(run, heat),
        ahead_share=0.0 if run.launches_only else run.busy_at_least or 0.0,
    )
