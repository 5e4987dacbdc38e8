"""Make the `Evidence` of a profiler's trace."""

from __future__ import annotations

from statistics import fmean

from labkit.diagnosis.evidence import Evidence
from labkit.instruments.card_formats import tensor_formats
from labkit.text import counted
from labkit.traces.breakdown import Breakdown
from labkit.traces.ranks import RankTraces

# Of what ranks lose, all lose the least; what one loses more, the others spend in collectives,
# waiting for it
LOST_BY_ALL = ("wait_share", "copy_share", "launch_share", "outside_share")


def of_trace(traced: Breakdown) -> Evidence:
    """Return the evidence of a profiler's trace."""
    shares = traced.shares
    on_gpu = traced.device_kind == "gpu"
    host = min(traced.host_work_us / traced.step_us, shares["other"])
    sent = shares["communication"]
    # Else the host's own collectives (Gloo) are all
    exposed = min(traced.busy["exposed_comm"], sent) if traced.busy.get("comm_busy") else sent
    # The others hide behind compute: on a GPU they are being issued, on a CPU they run
    operators = shares["cpu_exec"] + sent - exposed
    waits = shares["runtime"] + shares["other"] - host + (operators if on_gpu else 0.0)
    # No cure for launches shortens the hardware's own hand-over from kernel to kernel
    hand_over = min((traced.idle["kernel_wait_us"] or 0.0) / traced.step_us, waits)
    compute = shares["kernel"] if on_gpu else operators
    source = f"profiler trace {traced.source}, {counted(traced.steps, 'step')}"
    return Evidence(
        kind=traced.device_kind,
        source=source,
        inside=source,
        wait_share=shares["dataloader"],
        copy_share=shares["memcpy"] + shares["memset"],
        compute_share=compute,
        launch_share=waits - hand_over,
        communication_share=exposed,
        outside_share=host,
        compute_us=traced.step_us * compute,
        kernels=of_gpu(traced),
        formats=tensor_formats(traced.device_name, traced.compute_capability),
        trace=traced,
    )


def of_traces(ranks: RankTraces) -> Evidence:
    """Return the evidence of a job from the traces of its ranks."""
    first, *_ = each = [of_trace(rank) for rank in ranks]
    return first.but(
        source=f"profiler traces {ranks.source}, {len(each)} ranks",
        ranks=ranks,
        communication_share=fmean(one.communication_share for one in each),
        compute_share=fmean(one.compute_share for one in each),
        **{name: min(getattr(one, name) for one in each) for name in LOST_BY_ALL},
    )


def of_gpu(trace: Breakdown | None) -> Breakdown | None:
    """Return a trace; None where there is none, or it could not look into a GPU."""
    return trace if trace and trace.device_kind == "gpu" and trace.kernel_us else None
