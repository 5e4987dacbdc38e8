"""What the `Evidence` of a run says whichever of its steps are drawn: where each fact is from."""

from __future__ import annotations

from dataclasses import fields
from statistics import fmean

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
from labkit.diagnosis.witnesses import throttled, witnesses
from labkit.instruments.card_formats import tensor_formats
from labkit.results.core_use import CoreUse, mean_known
from labkit.results.readings import readings
from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.stamps.record import Event
from labkit.text import counted
from labkit.traces.read import xray_of

MODELS_WORK = {"forward", "backward", "optimizer"}  # parts of a loop's body


def known_of(run: RunData, wait: np.ndarray, ranks_cores: float) -> Evidence:
    """Return what does not change from one resampling of the steps to the next.

    `wait` is (steps,), s.
    """
    machine = run.machine
    is_gpu = machine.kind == "gpu"
    loop = loop_of(run)
    body = loop.lines.body if loop else {}
    xray = _xray(run.xray_facts)
    knobs = run.pipeline.to_dict()
    work = run.event("work") or {}
    replayed = (run.event("headroom") or {}).get("factor")
    # A spare card is not worth a word to what computes no model
    has_model = run.weights_dtype is not None or not MODELS_WORK.isdisjoint(body)
    spare = (run.event("spare_card") if run.watched and has_model else None) or {}
    return Evidence(
        kind=machine.kind,
        inside=f"x-ray of {counted(round(xray.steps), 'step')}" if xray else "x-ray",
        stall_share=_stall_share(wait),
        padding_share=run.padding,
        launches_only=run.launches_only,
        use=CoreUse.of(run, ranks_cores),
        threads=None if is_gpu else machine.threads,
        card=_card(run) if is_gpu else CardEvidence(),
        mfu=None if run.launches_only else run.mfu,
        peak=run.peak,
        flop_per_byte=run.mbu and work["flops"] / max(work["bytes"], 1),
        xray=xray,
        kernels=kernels_of(xray_of(run)) if is_gpu else None,
        lines=lines_of(run) if any(run.packed("lines")) else None,
        loop=loop,
        body=body,
        workers=worker_evidence(run),
        epochs=_epochs(run),
        whole=shares_of(run),
        host_wait_share=_host_wait(run.host_ns[run.warmup :]),
        growth=LoopGrowth(tuple(run.growth), *_swelling(run)),
        switches=tuple(run.switches),
        weights_dtype=run.weights_dtype,
        batch=_batch(run),
        spare_card=None if is_gpu else spare.get("name"),
        knobs=knobs,
        code=LoopCode.of(run.loop_code, run.event("job"), run.trainer),
        trains=not body or bool({"backward", "optimizer"} & body.keys()),
        formats=tensor_formats(machine.name, machine.compute_capability) if is_gpu else None,
        compiles=machine.compiles,
        headroom=None if replayed is None else max(1.0, replayed),
    )


def _stall_share(wait: np.ndarray) -> float:
    """Return the share of the waiting (s, by step) that the worst steps have."""
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    return float(worst.sum() / wait.sum()) if wait.any() else 0.0


def _batch(run: RunData) -> Batch:
    """Return what is known of a run's batches."""
    # Not of a prefetcher or Accelerate's loader, which move there what workers have made
    is_plain = run.watched == "DataLoader" and not run.pipeline.num_workers
    sizes = run.batch_bytes[np.isfinite(run.batch_bytes)]  # the last one of a pass included
    usual = float(np.median(sizes)) if len(sizes) else None
    return Batch(run.batch_dtype, run.batch_on_gpu and is_plain, usual, len(np.unique(sizes)))


def worker_evidence(run: RunData) -> WorkerEvidence | None:
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
        item_wait_ms=rows.item_wait_ms.mean(),
    )


def _epochs(run: RunData) -> Epochs:
    """Return what the loop waited for at the start of its later epochs, and in the first one."""
    firsts = sorted({step for step in run.first_steps if step < run.steps})
    if len(firsts) < 2:
        return Epochs()
    asked, ready = run.host_ns[:, :2].T
    wait_s = (ready - asked) / 1e9
    starts_s = wait_s[firsts[1:]]
    is_start = np.isin(np.arange(len(wait_s)), firsts)
    first, later = wait_s[: firsts[1]], wait_s[firsts[1] :]
    usual_s = fmean(later[~is_start[firsts[1] :]]) if len(later) > len(starts_s) else 0.0
    longer_s = float(first[1:].sum()) - usual_s * (len(first) - 1)
    wall_s = max(run.length_s, 1e-9)
    return Epochs(
        starts=float(starts_s.sum()) / wall_s,
        starts_ms=1e3 * fmean(starts_s),
        first=max(0.0, longer_s) / wall_s if len(first) >= limits.MIN_STEPS else 0.0,
    )


def _host_wait(host_ns: np.ndarray) -> float:
    """Return the share of steps (n, 4) in which the host waits for its batch."""
    asked, ready, _, end = host_ns.T
    return float((ready - asked).sum() / max((end - asked).sum(), 1))


def _card(run: RunData) -> CardEvidence:
    """Return what a GPU showed."""
    in_line = mean_known(each.get("launch_line") for _, each in readings(run))
    # None where the driver does not tell it (MIG, older drivers). A process that only has a context
    # there slows nobody down
    since = run.warm_s if run.steps else 0.0
    others = mean_known(each.get("others_sm") for _, each in readings(run, since))
    seen = witnesses(run)
    return CardEvidence(
        launches=None if in_line is None or run.watched else min(in_line, 1.0),
        others_share=others,
        heat=throttled(run),
        witnesses=seen,
        certain_share=max([0.0, *(each.at_least for each in seen)]),
        ahead_share=0.0 if run.launches_only else run.busy_at_least or 0.0,
    )


def _xray(seen: Event | None) -> Xray | None:
    """Return the x-ray's numbers where all that the rules need is among them."""
    numbers = {name: each for name, each in (seen or {}).items() if type(each) in (int, float)}
    if not all(each.name in numbers or each.default is None for each in fields(Xray)):
        return None
    return Xray(**fields_in(Xray, numbers))


def _swelling(run: RunData) -> tuple[float | None, float | None]:
    """Return the memory (GiB) of a run's processes, early and late, where it rose to the end."""
    held = [s["rss_gib"] for s in run.telemetry if isinstance(s.get("rss_gib"), float)]
    if len(held) < limits.MEMORY_READINGS:
        return None, None
    # The first fifth is the start: workers, caches
    fifths = [float(np.median(part)) for part in np.array_split(held, 5)[1:]]
    rose = np.all(np.diff(fifths) > 0) and fifths[-1] >= (1 + limits.SWELLS) * fifths[0]
    return (fifths[0], fifths[-1]) if rose else (None, None)
