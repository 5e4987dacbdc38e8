"""From a run to its `Evidence`: what all of it shows, and its measured steps or a draw of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.trace_evidence import of_gpu
from labkit.diagnosis.witnesses import heat_of, witness_of
from labkit.instruments.card_formats import tensor_formats
from labkit.prediction.prediction import recommend_prefetch, recommend_workers
from labkit.results.core_use import CoreUse
from labkit.results.readings import mean_of, readings_of
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import CLASSES, body_seconds, split_steps
from labkit.traces.read import xray_of

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2
OF_RUN = ("batch_dtype", "launches_only", "mfu", "padding", "peak", "weights_dtype")  # as they are


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
        whole_s = sum(spent_s) / (1 - self.known.beside_share) or 1.0  # they may have taken no time
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
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    facts = {name: getattr(run, name) for name in OF_RUN}
    facts |= _of_workers(run) | _of_epochs(run)
    if machine.kind == "gpu":
        facts |= _of_card(run)
    if run.watched:
        facts |= _of_loop(run)
    elif wait.sum() > WORTH_A_LOOK * parts.sum():
        facts["advised"] = recommend_workers(run)
        facts["deeper_queue"] = run.pipeline.num_workers and recommend_prefetch(run)
    return Evidence(
        kind=machine.kind,
        stall_share=float(worst.sum() / wait.sum()) if wait.any() else 0.0,
        use=CoreUse.of(run, ranks_cores),
        xray=run.xray_facts,
        lines=lines_of(run),
        knobs=run.pipeline.to_dict(),
        formats=tensor_formats(machine.name, machine.compute_capability),
        compiles=not machine.compile_lacks,
        **facts,
    )


def _of_card(run: RunData) -> dict[str, Any]:
    """Return what a GPU showed."""
    heat = heat_of(run)
    return {
        # None where the driver does not tell it (MIG, older drivers). A process that only has a
        # context there slows nobody down
        "others_on_card": mean_of(run, "others_sm"),
        "heat": heat,
        "witness": witness_of(run, heat or 0.0),
        "ahead_share": None if run.launches_only else run.busy_at_least,
        "kernels": of_gpu(xray_of(run)),
    }


def _of_workers(run: RunData) -> dict[str, Any]:
    """Return what a run recorded of its workers; {} where it recorded nothing, or has none."""
    seen = run.workers
    rows = seen.rows[seen.rows.index >= 0]
    if rows.empty:
        return {}
    hang = seen.hang
    return {
        "workers": len(rows),
        "worker_cpu": rows.cpu_share.mean(),
        "worker_idle": rows.idle_share.mean(),
        "library_threads": int(rows.library_threads.max()),
        "hang": hang if hang and hang.worker is not None else None,  # the loop's own
        "slowest": seen.slowest,
    }


def _of_epochs(run: RunData) -> dict[str, float]:
    """Return what the loop waited for at the start of its later epochs, and in the first one."""
    firsts = sorted({step for step in run.first_steps if step < run.steps})
    if len(firsts) < 2:
        return {}
    wait_s = np.diff(run.host_ns[:, :2])[:, 0] / 1e9  # from asking for a batch to having it
    second, wall_s = firsts[1], max(run.length_s, 1e-9)
    longer_s = (wait_s[1:second] - wait_s[second:].mean()).sum()
    is_known = second >= limits.MIN_STEPS
    return {
        "epoch_starts": float(wait_s[firsts[1:]].sum() / wall_s),
        "first_epoch": float(longer_s / wall_s) if is_known else 0.0,
    }


# -- a watched loop --------------------------------------------------------------------------------


def _of_loop(run: RunData) -> dict[str, Any]:
    """Return what a watched loop shows."""
    asked, ready, _, done = run.host_ns[run.warmup :].T
    sizes = run.batch_bytes[np.isfinite(run.batch_bytes)]
    spent = body_seconds(run.stamps)
    return {
        "watched": True,
        "host_wait_share": float((ready - asked).sum() / max((done - asked).sum(), 1)),
        "body": lines_of(run).body,
        "body_s": spent,
        "batch_bytes": float(np.median(sizes)) if len(sizes) else None,
        # Not of a prefetcher or Accelerate's loader, which move there what workers have made
        "batch_on_gpu": run.batch_on_gpu
        and run.watched == "DataLoader"
        and not run.pipeline.num_workers,
        # not worth a word to what computes no model
        "spare_card": run.weights_dtype and run.fact_of("spare_card", "name"),
        "headroom": run.fact_of("headroom", "factor"),
        "code": LoopCode.of(run.loop_code, run.trainer),
        "is_compiled": run.fact_of("job", "is_compiled"),
        "beside_share": _beside(run),
        "variables": run.growth,
        **_memory(run),
        **_growth(run, spent[run.warmup :]),
    }


def _beside(run: RunData) -> float | None:
    """Return the share of the time between passes over a loader; None where that is usual."""
    passes = run.passes_ended
    if not passes:
        return None
    inside = sum(each["ended"] - each["began"] for each in passes)
    share = 1 - inside / max(passes[-1]["ended"] - passes[0]["began"], 1)
    return share if share >= limits.BESIDE else None


def _memory(run: RunData) -> dict[str, float]:
    """Return the memory (GiB) of a run's processes, early and late, where it rose by SWELLS."""
    _, held = readings_of(run, "rss_gib")
    known = held[np.isfinite(held)]
    if len(known) < limits.MEMORY_READINGS:
        return {}
    # The first fifth is the start: workers, caches
    _, early, *_, late = (float(np.median(part)) for part in np.array_split(known, 5))
    is_risen = late >= (1 + limits.SWELLS) * early
    return {"early_gib": early, "late_gib": late} if is_risen else {}


def _growth(run: RunData, spent: np.ndarray) -> dict[str, float]:
    """Return how steps that took `spent` s grow; {} where they do not, or their batches as much."""
    table = np.column_stack([spent, run.batch_bytes[run.warmup :]])  # NaN: not known
    middle = np.array([np.median(part, axis=0) for part in np.array_split(table, 5)])
    growth, of_batches = middle[-1] / np.maximum(middle[0], 1e-9)
    rises = (np.diff(middle[:, 0]) > 0).sum() >= 3 and growth >= limits.DRIFT
    if len(spent) < 5 * limits.MIN_STEPS or not rises or of_batches >= limits.DRIFT:
        return {}
    lost_s = np.clip(spent - middle[0, 0], 0, None).sum()
    return {"growth": float(growth), "grown_share": float(lost_s / (run.length_s - run.warm_s))}
