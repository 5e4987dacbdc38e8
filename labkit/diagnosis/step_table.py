"""From a run to its `Evidence`: what all of it shows, and its measured steps or a draw of them."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import (
    Batch,
    CardEvidence,
    Epochs,
    Evidence,
    LoopGrowth,
    WorkerEvidence,
    Xray,
)
from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.trace_evidence import kernels_of
from labkit.diagnosis.wall_shares import shares_of
from labkit.diagnosis.watched_loop import loop_of
from labkit.diagnosis.witnesses import heat_of, witness_of
from labkit.instruments.card_formats import tensor_formats
from labkit.prediction.prediction import recommend_prefetch, recommend_workers
from labkit.results.core_use import CoreUse, mean_known
from labkit.results.readings import readings
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import split_steps
from labkit.text import counted
from labkit.traces.read import xray_of

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2


class StepTable:
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples.

    A row of `table` is the sum over a step, or over a few: its time by class, what a CPU's compute
    took while the model's own thread did not run (s), and the number of steps.
    """

    def __init__(self, run: RunData, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        first = max(run.warmup - 1, 0)
        parts = split_steps(run.stamps[first:])  # (steps, classes), s
        wait, _, compute, _, _ = parts.T
        own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped, as of a watched loop
        is_cpu = run.machine.kind == "cpu"
        stolen = np.nan_to_num(np.clip(compute - own, 0, None)) if is_cpu else np.zeros(len(parts))
        self.steps = len(parts) if parts.any() else 0  # stamps may show no time
        self.seconds = float(parts.sum())
        self.known = known_of(run, wait, ranks_cores)
        workers = self._workers_cores(float((compute - stolen).sum()))
        by_others = self.known.use.others or 0.0
        by_others /= max(workers + by_others, 1e-9)  # the part of what was stolen
        by_others = by_others if workers else 1.0
        table = np.column_stack([parts, stolen * by_others, np.ones(len(parts))])
        blocks = np.arange(0, len(parts), max(1, -(-len(parts) // limits.MOST_DRAWN)))
        self.rows = len(blocks)
        self.table = np.add.reduceat(table, blocks) if self.rows else table
        late = self.known.card.known("launches") or 0.0
        taken_s = max(float(wait.sum()), float(stolen.sum()))
        is_worth = taken_s > WORTH_A_LOOK * self.seconds
        if not run.watched and (is_worth or late > limits.WORTH_NAMING["launch"] / 2):
            deeper = recommend_prefetch(run) if self.known.has_workers else None
            self.known = self.known.but(advised=recommend_workers(run), deeper_queue=deeper)

    def _workers_cores(self, ran_s: float) -> float:
        """Return the cores that loader workers used beside the model's own thread; 0 without."""
        own = self.known.use.own
        if not self.known.has_workers or not self.steps:
            return 0.0
        return 1.0 if own is None else max(own - ran_s / self.seconds, 1e-9)

    def evidence(self, rows: np.ndarray | slice = slice(None)) -> Evidence:
        """Return the evidence of all steps, or of the given rows (a resampled run)."""
        sums = self.table[rows].sum(axis=0)
        steps = sums[-1]
        # drawn steps may have taken no time
        wait, copy, compute, launch, other, stolen, _ = sums / (sums[:5].sum() or 1.0)
        return self.known.but(
            source=f"step stamps, {steps:.0f} steps",
            wait_share=float(wait),
            copy_share=float(copy),
            compute_share=float(compute),
            launch_share=float(launch),
            other_share=float(other),
            stolen_by_others=float(stolen),
            wait_us=float(sums[0] / steps * 1e6),
            compute_us=float(sums[2] / steps * 1e6),
        )


def known_of(run: RunData, wait: np.ndarray, ranks_cores: float) -> Evidence:
    """Return what does not change from one resampling of the steps to the next.

    `wait` is (steps,), s.
    """
    machine = run.machine
    is_gpu = machine.kind == "gpu"
    loop = loop_of(run)
    body = loop.lines.body if loop else {}
    seen = run.xray_facts
    replayed = (run.event("headroom") or {}).get("factor")
    spare = (run.event("spare_card") or {}).get("name")
    return Evidence(
        kind=machine.kind,
        inside=f"x-ray of {counted(seen['steps'], 'step')}" if seen else "x-ray",
        stall_share=_stall_share(wait),
        padding_share=run.padding,
        launches_only=run.launches_only,
        use=CoreUse.of(run, ranks_cores),
        card=_card(run) if is_gpu else CardEvidence(),
        mfu=None if run.launches_only else run.mfu,
        peak=run.peak,
        xray=Xray(**{name: seen.get(name) for name in Xray.__annotations__}) if seen else None,
        kernels=kernels_of(xray_of(run)) if is_gpu else None,
        lines=lines_of(run) if run.all("lines") else None,
        loop=loop,
        body=body,
        workers=_workers(run),
        epochs=_epochs(run),
        whole=shares_of(run),
        host_wait_share=_host_wait(run.host_ns[run.warmup :]),
        growth=_growth(run),
        weights_dtype=run.weights_dtype,
        batch=_batch(run),
        # not worth a word to what computes no model
        spare_card=spare if run.watched and run.weights_dtype and not is_gpu else None,
        knobs=run.pipeline.to_dict(),
        code=LoopCode.of(run.loop_code, run.event("job"), run.trainer),
        trains=not body or bool({"backward", "optimizer"} & body.keys()),
        formats=tensor_formats(machine.name, machine.compute_capability) if is_gpu else None,
        compiles=not machine.compile_lacks,
        headroom=replayed and max(1.0, replayed),
    )


def _stall_share(wait: np.ndarray) -> float:
    """Return the share of the waiting (s, by step) that the worst steps have."""
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    return float(worst.sum() / wait.sum()) if wait.any() else 0.0


def _batch(run: RunData) -> Batch:
    """Return what is known of a run's batches."""
    # Not of a prefetcher or Accelerate's loader, which move there what workers have made
    is_plain = run.watched == "DataLoader" and not run.pipeline.num_workers
    sizes = run.batch_bytes[np.isfinite(run.batch_bytes)]
    usual = float(np.median(sizes)) if len(sizes) else None
    return Batch(
        dtype=run.batch_dtype,
        on_gpu=run.batch_on_gpu and is_plain,
        bytes=usual,
    )


def _workers(run: RunData) -> WorkerEvidence | None:
    """Return what a run recorded of its workers; None where it recorded nothing, or has none."""
    seen = run.workers
    rows = seen.rows[seen.rows.index >= 0]
    if rows.empty:
        return None
    hang = seen.hang
    return WorkerEvidence(
        cpu_shares=tuple(rows.cpu_share),
        in_line_share=rows.in_line_share.mean() or None,
        idle_share=rows.idle_share.mean(),
        library_threads=int(rows.library_threads.max()),
        busiest_over_mean=rows.busy_ms.max() / rows.busy_ms.mean(),
        hang=None if hang is None or hang.worker is None else hang,  # the loop's own
        grew_gib=None if rows.grew_gib.isna().all() else rows.grew_gib.sum(),
        slowest=", ".join(seen.slowest[:3]),
    )


def _epochs(run: RunData) -> Epochs:
    """Return what the loop waited for at the start of its later epochs, and in the first one."""
    firsts = sorted({step for step in run.first_steps if step < run.steps})
    if len(firsts) < 2:
        return Epochs()
    wait_s = np.diff(run.host_ns[:, :2])[:, 0] / 1e9  # from asking for a batch to having it
    starts_s, second = wait_s[firsts[1:]], firsts[1]
    ordinary = np.setdiff1d(np.arange(second, len(wait_s)), firsts)
    usual_s = wait_s[ordinary].mean() if len(ordinary) else 0.0
    longer_s = (wait_s[1:second] - usual_s).sum() if second >= limits.MIN_STEPS else 0.0
    wall_s = max(run.length_s, 1e-9)
    starts = float(starts_s.sum()) / wall_s, 1e3 * float(starts_s.mean())
    return Epochs(*starts, max(0.0, float(longer_s)) / wall_s)


def _host_wait(host_ns: np.ndarray) -> float:
    """Return the share of steps (n, 4) in which the host waits for its batch."""
    asked, ready, _, end = host_ns.T
    return float((ready - asked).sum() / max((end - asked).sum(), 1))


def _card(run: RunData) -> CardEvidence:
    """Return what a GPU showed."""
    in_line = None if run.watched else mean_known(r.get("launch_line") for _, r in readings(run))
    # None where the driver does not tell it (MIG, older drivers). A process that only has a context
    # there slows nobody down
    since = run.warm_s if run.steps else 0.0
    heat = heat_of(run)
    witness, certain = witness_of(run, heat)
    return CardEvidence(
        launches=in_line and min(in_line, 1.0),
        others_share=mean_known(each.get("others_sm") for _, each in readings(run, since)),
        heat=heat,
        witness=witness,
        certain_share=certain,
        ahead_share=0.0 if run.launches_only else run.busy_at_least or 0.0,
    )


def _growth(run: RunData) -> LoopGrowth:
    """Return what grew; of the memory (GiB) of a run's processes where it rose to the end."""
    held = [sample["rss_gib"] for sample in run.telemetry if sample.get("rss_gib") is not None]
    variables = tuple(run.growth)
    if len(held) < limits.MEMORY_READINGS:
        return LoopGrowth(variables=variables)
    # The first fifth is the start: workers, caches
    early, *rest, late = [float(np.median(part)) for part in np.array_split(held, 5)[1:]]
    rose = sorted({early, *rest, late}) == [early, *rest, late]
    if not rose or late < (1 + limits.SWELLS) * early:
        return LoopGrowth(variables=variables)
    return LoopGrowth(variables=variables, early_gib=early, late_gib=late)
