"""From a run or a trace to its `Evidence`; of a run also from a draw of its measured steps."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence, Witness
from labkit.diagnosis.hot_lines import sampled_lines
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.wall_shares import shares_of
from labkit.instruments.card_formats import tensor_formats
from labkit.prediction.prediction import recommend
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import CLASSES, body_seconds, split_steps
from labkit.text import counted
from labkit.traces.read import Breakdown, RankTraces, xray_of

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2
OF_RUN = ("launches_only", "mfu", "padding", "peak")  # as they are
OF_JOB = ("batch_dtype", "is_compiled", "weights_dtype")  # of the event after the first step

# NVML's clocks event reasons: slowdown by the hardware, by heat (software, hardware), power brake.
# The power limit does not count: a card that works hard is held to it
HEAT = 0x8 | 0x20 | 0x40 | 0x80
LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


class StepTable:
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples.

    `parts` (steps, classes) is how long each took, s.
    """

    def __init__(self, run: RunData, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        parts = split_steps(run.stamps[max(run.warmup - 1, 0) :])  # (steps, classes), s
        self.steps = len(parts) if parts.any() else 0  # stamps may show no time
        self.known = steady_facts(run, parts, ranks_cores)
        self.parts = parts

    def evidence(self, rows: np.ndarray | slice = slice(None)) -> Evidence:
        """Return the evidence of all steps, or of the given rows (a resampled run)."""
        parts = self.parts[rows]
        mean_us = dict(zip(CLASSES, (1e6 * parts.mean(axis=0)).tolist(), strict=True))
        whole_us = sum(mean_us.values()) or 1.0  # they may have taken no time
        return self.known.but(
            source=f"step stamps, {len(parts)} steps",
            wait_us=mean_us["wait"],
            compute_us=mean_us["compute"],
            **{f"{part}_share": us / whole_us for part, us in mean_us.items()},
        )


def steady_facts(run: RunData, parts: np.ndarray, ranks_cores: float) -> Evidence:
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
        facts["advised"] = recommend(run, "num_workers")
        facts["deeper_queue"] = run.pipeline.num_workers and recommend(run, "prefetch_factor")
    return Evidence(
        kind=machine.kind,
        stall_share=float(worst.sum() / wait.sum()) if wait.any() else 0.0,
        use=CoreUse.of(run, ranks_cores),
        xray=run.xray_facts,
        lines=sampled_lines(run),
        knobs=run.pipeline.to_dict(),
        formats=tensor_formats(machine.name, machine.compute_capability),
        compiles=not machine.compile_lacks,
        **facts,
    )


def _of_card(run: RunData) -> dict[str, Any]:
    """Return what a GPU showed."""
    heat = heat_of(run)
    witness = witness_of(run, heat or 0.0)
    return {
        # None where the driver does not tell it (MIG, older drivers). A process that only has a
        # context there slows nobody down
        "others_on_card": run.mean_reading("others_sm"),
        "heat": heat,
        "witness": witness,
        "certain_share": 1.0 if witness and witness.idle == 0 else run.busy_at_least,
        "kernels": of_gpu(xray_of(run)),
    }


def _of_workers(run: RunData) -> dict[str, Any]:
    """Return what a run recorded of its workers; {} where it recorded nothing, or has none."""
    rows = run.workers.rows
    rows = rows[rows.index >= 0]
    if rows.empty:
        return {}
    return {
        "workers": len(rows),
        "worker_cpu": rows.cpu_share.mean(),
        "worker_idle": rows.idle_share.mean(),
        "library_threads": int(rows.library_threads.max()),
    }


def _of_epochs(run: RunData) -> dict[str, float]:
    """Return what the loop waited for at the start of its later epochs, and in the first one."""
    firsts = sorted({step for step in run.first_steps if step < run.steps})
    if len(firsts) < 2:
        return {}
    asked, ready, *_ = run.host_ns.T
    wait_s = (ready - asked) / 1e9
    second, wall_s = firsts[1], max(run.length_s, 1e-9)
    longer_s = (wait_s[1:second] - wait_s[second:].mean()).sum()
    is_known = second >= limits.MIN_STEPS
    return {
        "epoch_starts": float(wait_s[firsts[1:]].sum() / wall_s),
        "first_epoch": float(longer_s / wall_s) if is_known else 0.0,
    }


# -- a second witness of a busy GPU ----------------------------------------------------------------
# Did it work, or wait between kernels for the next launch? A pair of events counts a GPU as busy
# from a step's first kernel to its last, gaps included. Where no x-ray looked inside, one of these
# can tell, the surest first: the host that ran ahead (stamps), the SMs (GPM counters of Hopper and
# later cards), or the power the card drew.


def heat_of(run: RunData) -> float | None:
    """Return the share of the readings in which heat held a GPU's clock down; None: not read."""
    _, reasons = run.readings("clock_reasons")
    known = reasons[np.isfinite(reasons)].astype(int)
    return float(np.mean(known & HEAT > 0)) if len(known) else None


def witness_of(run: RunData, heat: float) -> Witness | None:
    """Return the surest word on a GPU run whose device was timed; None where it was not.

    A clock that heat holds down for a share of the time, `heat`, draws little.
    """
    busy = run.utilization
    if not busy:
        return None
    ahead, least = run.busy_at_least or 0.0, busy - limits.WORTH_NAMING["launch"]
    text = f"for {ahead:.0%} of the time the device worked on a step that the host had issued in "
    text += "full (stamps)"
    words = [Witness(text, 0.0 if ahead > least else None)]
    active = run.mean_reading("sm", run.warm_s, limits.MIN_READINGS)
    if active is not None:
        share = active / busy
        text = f"SMs had a warp to run for {min(share, 1):.0%} of the time that is busy (GPM)"
        words.append(Witness(text, _idle(share, share, limits.SMS_WORK, limits.SMS_REST)))
    watts = run.mean_reading("power_w", run.warm_s + LAGS_S, limits.MIN_READINGS)
    limit = run.mean_reading("power_limit_w")
    if watts is not None and limit and heat < limits.HELD_DOWN:
        # A card that waits draws little. While busy it drew at most what it is if it drew nothing
        # else, and at least the mean
        drawn = watts / limit
        text = f"the card drew {drawn:.0%} of its power limit (NVML)"
        idle = _idle(drawn, drawn / busy, limits.POWER_WORKS, limits.POWER_RESTS)
        words.append(Witness(text, idle))
    return next((each for each in words if each.idle is not None), words[-1])


def _idle(least: float, most: float, works: float, rests: float) -> float | None:
    """Return the share of the busy time in which a device waited, by a reading.

    That lies between `least` and `most`: from `works` on it worked; None where this cannot tell.
    """
    if least >= works:
        return 0.0
    return 1 - most / works if most < rests else None


# -- a watched loop --------------------------------------------------------------------------------


def _of_loop(run: RunData) -> dict[str, Any]:
    """Return what a watched loop shows."""
    asked, ready, _, done = run.host_ns[run.warmup :].T
    sizes = run.each("bytes")
    sizes = sizes[np.isfinite(sizes)]
    spent = body_seconds(run.stamps)
    job = run.event("job") or {}
    return {
        "watched": True,
        "host_wait_share": float((ready - asked).sum() / max((done - asked).sum(), 1)),
        "body": sampled_lines(run).body,
        "body_s": spent,
        "batch_bytes": float(np.median(sizes)) if len(sizes) else None,
        # Not of a prefetcher or Accelerate's loader, which move there what workers have made
        "batch_on_gpu": job.get("batch_on_gpu")
        and run.watched == "DataLoader"
        and not run.pipeline.num_workers,
        # not worth a word to what computes no model
        "spare_card": job.get("weights_dtype") and run.fact_of("spare_card", "name"),
        "headroom": run.fact_of("headroom", "factor"),
        "code": LoopCode.of(run.loop.get("code"), bool(run.loop.get("trainer"))),
        "whole": shares_of(run),
        # of older records some grow without graphs
        "variables": [
            each for each in run.fact_of("growth", "found", default=()) if each.get("graph", True)
        ],
        **{name: job.get(name) for name in OF_JOB},
        **_growth(run, spent[run.warmup :]),
    }


def _growth(run: RunData, spent: np.ndarray) -> dict[str, float]:
    """Return how steps that took `spent` s grow, first to last fifth; {} below DRIFT times."""
    if len(spent) < 5 * limits.MIN_STEPS:
        return {}
    first, *_, last = (float(np.median(part)) for part in np.array_split(spent, 5))
    if not first or last < limits.DRIFT * first:
        return {}
    lost_s = np.clip(spent - first, 0, None).sum()
    return {"growth": last / first, "grown_share": float(lost_s / (run.length_s - run.warm_s))}


# -- a trace ---------------------------------------------------------------------------------------

# Of what ranks lose, all lose the least; what one loses more, the others spend in collectives,
# waiting for it
LOST_BY_ALL = ("wait_share", "copy_share", "launch_share", "outside_share")


def of_trace(traced: Breakdown) -> Evidence:
    """Return the evidence of a profiler's trace."""
    shares = traced.shares
    on_gpu = traced.gpu_utilization is not None
    host = min(traced.host_work_us / traced.step_us, shares["other"])
    sent = shares["communication"]
    # Else the host's own collectives (Gloo) are all
    exposed = min(traced.busy["exposed_comm"], sent) if traced.busy.get("comm_busy") else sent
    # The others hide behind compute: on a GPU they are being issued, on a CPU they run
    operators = shares["cpu_exec"] + sent - exposed
    waits = shares["runtime"] + shares["other"] - host + (operators if on_gpu else 0.0)
    # No cure for launches shortens the hardware's own way from kernel to kernel
    own_gaps = min(traced.idle.get("kernel_wait_us", 0.0) / traced.step_us, waits)
    compute = shares["kernel"] if on_gpu else operators
    source = f"profiler trace {traced.source}, {counted(traced.steps, 'step')}"
    return Evidence(
        kind="gpu" if on_gpu else "cpu",
        source=source,
        wait_share=shares["dataloader"],
        copy_share=shares["memcpy"] + shares["memset"],
        compute_share=compute,
        launch_share=waits - own_gaps,
        communication_share=exposed,
        outside_share=host,
        compute_us=traced.step_us * compute,
        kernels=of_gpu(traced),
        formats=tensor_formats(traced.device_name, traced.compute_capability),
        trace=traced,
    )


def of_traces(ranks: RankTraces) -> Evidence:
    """Return the evidence of a job from the traces of its ranks."""
    first, *_ = each = [of_trace(rank) for rank in ranks.ranks]
    return first.but(
        source=f"profiler traces {ranks.source}, {len(each)} ranks",
        ranks=ranks,
        communication_share=fmean(one.communication_share for one in each),
        compute_share=fmean(one.compute_share for one in each),
        **{name: min(getattr(one, name) for one in each) for name in LOST_BY_ALL},
    )


def of_gpu(trace: Breakdown | None) -> Breakdown | None:
    """Return a trace; None where there is none, or it could not look into a GPU."""
    return trace if trace and trace.kernel_us else None
