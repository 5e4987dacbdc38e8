"""Make the `Evidence` of a profiler's trace."""

from __future__ import annotations

from statistics import fmean

from labkit.diagnosis.evidence import Evidence, Kernels, TraceFacts
from labkit.instruments.card_formats import tensor_formats
from labkit.text import counted
from labkit.traces.breakdown import GRAPHS, Breakdown
from labkit.traces.ranks import RankTraces

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
    # No cure for launches shortens the hardware's own hand-over from kernel to kernel
    hand_over = min(traced.idle.get("kernel_wait_us", 0.0) / traced.step_us, waits)
    compute = shares["kernel"] if on_gpu else operators
    source = f"profiler trace {traced.source}, {counted(traced.steps, 'step')}"
    return Evidence(
        kind="gpu" if on_gpu else "cpu",
        source=source,
        inside=source,
        wait_share=shares["dataloader"],
        copy_share=shares["memcpy"] + shares["memset"],
        compute_share=compute,
        launch_share=waits - hand_over,
        communication_share=exposed,
        outside_share=host,
        compute_us=traced.step_us * compute,
        kernels=kernels_of(traced),
        trains=traced.trains,
        formats=tensor_formats(traced.device_name, traced.compute_capability),
        trace=TraceFacts(has_workers=traced.loader_workers, outside_where=traced.host_where),
    )


def of_traces(ranks: RankTraces) -> Evidence:
    """Return the evidence of a job from the traces of its ranks."""
    first, *_ = each = [of_trace(rank) for rank in ranks.ranks]
    late = ranks.straggler
    return first.but(
        source=f"profiler traces {ranks.source}, {len(each)} ranks",
        trace=first.trace.but(late_rank=late, late_said=ranks.headline),
        communication_share=fmean(one.communication_share for one in each),
        compute_share=fmean(one.compute_share for one in each),
        **{name: min(getattr(one, name) for one in each) for name in LOST_BY_ALL},
    )


def kernels_of(trace: Breakdown | None) -> Kernels | None:
    """Return what a trace says of a GPU's kernels; None where it could not look into the device."""
    if trace is None or trace.gpu_utilization is None:
        return None
    return Kernels(
        kernel_us=trace.kernel_us,
        cuda_graphs=GRAPHS in trace.notes,
        tensor_core_share=trace.tensor_core_share or 0.0,
        eligible_share=trace.tensor_core_eligible_share,
    )
