"""What the `Evidence` of a run says whichever of its steps are drawn: where each fact is from."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from statistics import fmean

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import (
    Batch,
    CardEvidence,
    Epochs,
    Evidence,
    Launches,
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
from labkit.results.hardware import Machine
from labkit.results.readings import readings
from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.stamps.record import Event
from labkit.traces.read import xray_of

# Loaders that prepare nothing beside the loop by themselves, and torch's
NOBODYS = ("DataLoader", "generator", "enumerate", "zip", "map", "range", "list", "tuple", "islice")
MODELS_WORK = {"forward", "backward", "optimizer"}  # parts of a loop's body
FORKS_NO_MORE = re.compile(r"3\.(1[4-9]|[2-9]\d)")  # Pythons that start workers anew on Linux, too


def known_of(run: RunData, wait: np.ndarray, compute: np.ndarray, ranks_cores: float) -> Evidence:
    """Return what does not change from one resampling of the steps to the next.

    `wait` and `compute` are (steps,), s.
    """
    machine = run.machine
    loop = loop_of(run)
    body = loop.lines.body if loop else {}
    xray = _xray(run.xray_facts)
    knobs = run.pipeline.to_dict()
    replayed = (run.event("headroom") or {}).get("factor")
    known = Evidence(
        kind=machine.kind,
        inside=f"x-ray of {xray.steps:g} steps" if xray else "x-ray",
        stall_share=_stall_share(wait),
        padding_share=run.padding,
        # of a step that has the cores to itself
        quick_compute_us=float(np.quantile(compute, limits.QUICK)) * 1e6 if len(compute) else None,
        launches_only=run.launches_only,
        use=CoreUse.of(run, ranks_cores),
        xray=xray,
        lines=lines_of(run) if run.samples_of_lines else None,
        loop=loop,
        body=body,
        workers=worker_evidence(run),
        epochs=_epochs(run),
        whole=shares_of(run),
        knobs=knobs,
        trains=not body or bool({"backward", "optimizer"} & body.keys()),
        compiles=machine.compiles,
        headroom=None if replayed is None else max(1.0, replayed),
    )
    if run.watched:
        known = _of_watched(known, run)
    return _of_gpu(known, run) if machine.kind == "gpu" else _of_cpu(known, run, compute)


def _stall_share(wait: np.ndarray) -> float:
    """Return the share of the waiting (s, by step) that the worst steps have."""
    worst = np.sort(wait)[-max(1, round(limits.WORST_STEPS * len(wait))) :]
    return float(worst.sum() / wait.sum()) if wait.any() else 0.0


def _of_watched(known: Evidence, run: RunData) -> Evidence:
    """Return the evidence with what only the recorder of a user's own loop sees."""
    code = LoopCode.of(run.loop_code, run.event("job"))
    # Not of a prefetcher or Accelerate's loader, which move there what workers have made
    is_plain = run.watched == "DataLoader" and not run.pipeline.num_workers
    on_gpu = run.batch_on_gpu and is_plain
    sizes = run.batch_bytes[np.isfinite(run.batch_bytes)]  # the last one of a pass included
    usual = float(np.median(sizes)) if len(sizes) else None
    return replace(
        known,
        switches=tuple(run.switches),
        padding_beyond=run.padding_beyond,
        growth=LoopGrowth(tuple(run.growth), *_swelling(run)),
        weights_dtype=run.weights_dtype,
        batch=Batch(run.batch_dtype, on_gpu, usual, run.batch_shape, len(np.unique(sizes))),
        code=code,
        trainer=run.trainer,
        own_loader=None if run.watched in NOBODYS else run.watched,
        may_fuse=code.may_fuse,
        imports_script=_imports_script(run.machine, code),
        host_wait_share=_host_wait(run.host_ns[run.warmup :]),
    )


def _imports_script(machine: Machine, code: LoopCode) -> bool:
    """Return whether a loader's worker starts by importing the script that trains.

    So it does on macOS and Windows, and from Python 3.14 on everywhere, unless the loader says how
    its workers start.
    """
    method = (code.arguments or {}).get("multiprocessing_context")
    if method is not None:
        return "'fork'" not in method
    newer = FORKS_NO_MORE.match(machine.versions.get("python", ""))
    return newer is not None or not (machine.os or "Linux").startswith("Linux")


def worker_evidence(run: RunData) -> WorkerEvidence | None:
    """Return what a run recorded of its workers; None where it recorded nothing, or has none."""
    seen = run.workers
    workers = [worker for worker in seen if worker.worker >= 0]
    if not workers:
        return None
    hang = seen.hang
    busy_ms = [worker.busy_ms for worker in workers]
    return WorkerEvidence(
        cpu_shares=tuple(worker.cpu_share for worker in workers),
        in_line_share=fmean(worker.in_line_share for worker in workers) or None,
        idle_share=seen.idle_share,
        library_threads=max(worker.library_threads for worker in workers),
        busiest_over_mean=max(busy_ms) / fmean(busy_ms),
        hang=None if hang is None or hang.worker is None else hang,  # the loop's own
        grew_gib=seen.grew_gib,
        slowest=", ".join(map(str, seen.slowest[:3])),
        item_wait_ms=fmean(max(0.0, w.item_ms - w.item_cpu_ms) for w in workers),
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


def _of_cpu(known: Evidence, run: RunData, compute: np.ndarray) -> Evidence:
    """Return the evidence with a GPU that a watched model on the CPU leaves alone.

    It is not worth a word to what computes no model, or for less time than launches take a GPU.
    """
    known = replace(known, threads=run.machine.threads)
    spare = run.event("spare_card") if run.watched else None
    if spare is None or np.mean(compute) < limits.WORTH_A_CARD_MS / 1e3:
        return known
    has_model = run.weights_dtype is not None or not MODELS_WORK.isdisjoint(known.body)
    return replace(known, spare_card=spare["name"]) if has_model else known


def _of_gpu(known: Evidence, run: RunData) -> Evidence:
    """Return the evidence with what a GPU showed."""
    machine = run.machine
    in_line = mean_known(each.get("launch_line") for _, each in readings(run))
    launches = None
    if in_line is not None and run.queued_ms is not None:
        launches = Launches(run.queued_ms, min(in_line, 1.0))
    kernels = kernels_of(xray_of(run))
    seen = witnesses(run)
    card = CardEvidence(
        launches=launches,
        others_share=_others_on_gpu(run),
        heat=throttled(run),
        witnesses=() if kernels else seen,
        certain_share=max((run.busy_at_least or 0.0, *(each.at_least for each in seen))),
        may_never_rest=any(each.may_be_all for each in seen),
        ahead_share=0.0 if run.launches_only else run.busy_at_least or 0.0,
    )
    return replace(
        known,
        card=card,
        kernels=kernels,
        formats=tensor_formats(machine.name, machine.compute_capability),
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


def _others_on_gpu(run: RunData) -> float | None:
    """Return the share of the measured time in which others' kernels ran on the GPU.

    None where the driver does not tell it (MIG, older drivers). A process that only has a context
    there slows nobody down.
    """
    if not run.steps:
        return None
    return mean_known(each.get("others_sm") for _, each in readings(run, run.warm_s))
