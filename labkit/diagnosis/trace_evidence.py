"""Make the `Evidence` of a profiler's trace."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from labkit.bench.card_formats import tensor_formats
from labkit.diagnosis.evidence import Evidence, Kernels, TraceFacts
from labkit.diagnosis.loader_code import LoopCode
from labkit.results.text import counted
from labkit.traces.breakdown import Breakdown
from labkit.traces.ranks import RankTraces

# Kernels that only move data; a fused optimizer does in one pass what foreach does in many
PASSES = r"(?i)elementwise|multi_tensor_apply(?!.*fused)"
# CUTLASS ends a kernel's name in its alignment: 16-bit sizes in multiples of 8 run in `align8`
UNALIGNED = r"(?:tensorop|wmma|[hs]?16816|[hs]1688|h884).*_align[12]\b"


class TraceShares(NamedTuple):
    """Shares (0 to 1) of a traced step that `Evidence` has, and the classes of a trace have not."""

    compute: float
    launch: float  # the device waits for the host to issue work
    communication: float  # that hides behind no compute
    host: float  # in Python, more than to issue the next operator


def _shares(breakdown: Breakdown) -> TraceShares:
    shares = breakdown.shares
    on_gpu = breakdown.device_kind == "gpu"
    seen = breakdown.busy.get("comm_busy")  # else the host's own collectives (Gloo) are all
    exposed = breakdown.busy["exposed_comm"] if seen else 1.0
    exposed = min(exposed, shares["communication"])
    hidden = shares["communication"] - exposed  # on a GPU it is being issued, on a CPU it runs
    host = min(breakdown.host_work_us / breakdown.step_us, shares["other"])
    waits = shares["runtime"] + shares["other"] - host
    if on_gpu:
        waits += shares["cpu_exec"] + hidden
    # No cure for launches shortens the hardware's own hand-over from kernel to kernel
    hand_over = min((breakdown.idle["kernel_wait_us"] or 0.0) / breakdown.step_us, waits)
    compute = shares["kernel"] if on_gpu else shares["cpu_exec"] + hidden
    return TraceShares(compute, waits - hand_over, exposed, host)


def of_trace(breakdown: Breakdown) -> Evidence:
    """Return the evidence of a profiler's trace."""
    of_class = breakdown.shares
    shares = _shares(breakdown)
    source = f"profiler trace {breakdown.source}, {counted(breakdown.steps, 'step')}"
    return Evidence(
        kind=breakdown.device_kind,
        source=source,
        inside=source,
        wait_share=of_class["dataloader"],
        copy_share=of_class["memcpy"] + of_class["memset"],
        compute_share=shares.compute,
        launch_share=shares.launch,
        communication_share=shares.communication,
        outside_share=shares.host,
        compute_us=breakdown.step_us * shares.compute,
        kernels=kernels_of(breakdown),
        code=LoopCode(),
        trains=breakdown.trains is not False,
        formats=tensor_formats(breakdown.device_name, breakdown.compute_capability),
        trace=TraceFacts(breakdown.loader_workers, breakdown.host_where),
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
        trace=TraceFacts(
            ranks[0].loader_workers,
            ranks[0].host_where,
            late_rank=late,
            late_said="" if late is None else ranks.headline,
        ),
        wait_share=min(rank.wait_share for rank in each),
        copy_share=min(rank.copy_share for rank in each),
        launch_share=min(rank.launch_share for rank in each),
        outside_share=min(rank.outside_share for rank in each),
        communication_share=fmean(rank.communication_share for rank in each),
        compute_share=fmean(rank.compute_share for rank in each),
    )


def kernels_of(trace: Breakdown | None) -> Kernels | None:
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
