"""MFU and MBU: how much of what the device could do the model really needed.

MFU: the FLOPs of the model's forward and backward pass over what the peak allows in the time
(Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). MBU: the same of bytes, a lower bound of
the traffic (both counted in `labkit.bench.flops`).
"""

from __future__ import annotations

from labkit.diagnosis.thresholds import NO_PEAK
from labkit.results.run import Run


def mfu(run: Run) -> float | None:
    """Return `run.mfu` against its own peak."""
    return _share(run, "flops", run.peak and run.peak.flop_per_s)


def mbu(run: Run) -> float | None:
    """Return `run.mbu`; None also where all that a step touches fits into the cache."""
    work = run.event("work")
    if work is None or work["held_bytes"] <= (work.get("cache_bytes") or 0):
        return None
    return _share(run, "bytes", run.peak and run.peak.byte_per_s)


def _share(run: Run, what: str, per_s: float | None) -> float | None:
    """Return the FLOPs or bytes of a run's samples, over what `per_s` allows: 0 to 1, or None.

    The zeros of a convolution's padding are counted, and a good kernel leaves them out; Winograd's
    kernels (cuDNN, FP32) take 16 multiplications for 36 of a 3x3 one (Lavin and Gray, CVPR 2016).
    What that brings above 1 counts as 1. Far above, others used the machine while its peak was
    measured.
    """
    work = run.event("work")
    if not work or work["samples"] <= 0 or not work[what] or not run.throughput or not per_s:
        return None
    reached = work[what] / work["samples"] * run.throughput / per_s
    return None if reached > NO_PEAK else min(reached, 1.0)
