"""MFU and MBU: how much of what the device could do the model really needed.

MFU: the FLOPs of the model's forward and backward pass over what the peak allows in the time
(Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). MBU: the same of bytes, which are a lower
bound of the traffic (both are counted in `labkit.bench.flops`). Busy is not MFU: a device is busy
also where it waits for its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.analysis.datasheets import card
from labkit.results.event_log import of_one_moment

NO_PEAK = 1.25  # 3x3 kernels on 8x8 pixels, an eighth of whose products are with padding, and 10 %
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True)
class Peak:
    """What a device can do: prints as "312 TFLOP/s in BF16, 1555 GB/s, data sheet of A100 ..."."""

    flop_per_s: float  # dense, in `precision`
    byte_per_s: float | None  # of its memory
    precision: str
    source: str  # a data sheet, or where and how it was measured

    @property
    def ridge(self) -> float | None:
        """The FLOP/byte from which compute, not memory, is the limit; None without bandwidth."""
        return self.byte_per_s and self.flop_per_s / self.byte_per_s

    def __str__(self) -> str:
        scale, unit = next((s for s in SCALES if self.flop_per_s >= s[0]), SCALES[-1])
        rate = f"{self.flop_per_s / scale:.3g} {unit}FLOP/s"
        memory = f", {self.byte_per_s / 1e9:.4g} GB/s" if self.byte_per_s else ""
        return f"{rate} in {self.precision.upper()}{memory}, {self.source}"


@of_one_moment
def peak(run: Any) -> Peak | None:
    """Return the peak that a run's MFU is held against; None where it is unknown.

    Of a GPU its data sheet's dense figure for the precision in use. Of a CPU, and of a card that
    is not listed, the roof that `lk.measure("roofline")` had found there before the run began.
    """
    work, machine = run.event("work"), run.machine
    if work is None:
        return None
    kind, sheet = work["precision"], card(machine.name) if machine.kind == "gpu" else None
    if sheet and kind in sheet.tflop_per_s:
        rate, source = sheet.tflop_per_s[kind] * 1e12, f"data sheet of {sheet.name}"
        return Peak(rate, sheet.gb_per_s * 1e9, kind, source)
    roof = work.get("roof") or {}
    return _measured(run, roof.get(kind), roof.get("bandwidth"), kind, run.recorded)


def _measured(run: Any, flops: float | None, bytes: float | None, kind: str, away: bool) -> Any:
    threads = run.machine.threads if run.machine.kind == "cpu" else None
    on = f", {threads} thread{'' if threads == 1 else 's'}" if threads else ""
    source = f"measured {f'on {run.machine.name}' if away else 'here'} (roofline{on})"
    return Peak(flops, bytes, kind, source) if flops else None


def mfu(run: Any) -> float | None:
    """Return `run.mfu` against its own peak."""
    return share(run, "flops", (found := run.peak) and found.flop_per_s)


def mbu(run: Any) -> float | None:
    """Return `run.mbu`; None also where all that a step touches fits into the cache."""
    work = run.event("work")
    if work is None or work["held_bytes"] <= (work.get("cache_bytes") or 0):
        return None
    return share(run, "bytes", (found := run.peak) and found.byte_per_s)


def share(run: Any, what: str, per_s: float | None) -> float | None:
    """Return the FLOPs or bytes of a run's samples, over what `per_s` allows: 0 to 1, or None.

    The zeros of a convolution's padding are counted, and a good kernel leaves them out: what that
    brings above 1 counts as 1. None far above: no peak, as of a machine that others used meanwhile.
    """
    each, rate = per_sample(run, what), run.throughput
    part = each * rate / per_s if each and rate and per_s else None
    return None if part is None or part > NO_PEAK else min(part, 1.0)


def per_sample(run: Any, what: str = "flops") -> float | None:
    """Return the FLOPs (or "bytes") that a run's model needs for a sample; None if not counted."""
    work = run.event("work")
    return work[what] / work["samples"] if work and work["samples"] > 0 else None


def mfu_against(run: Any, roof: Any) -> float | None:
    """Return the MFU against `roof`: a `lk.roofline(...)`, its measurements, or FLOP/s.

    Raises ValueError where the roof is that of another device, of other threads, or lacks the
    run's precision.
    """
    if isinstance(roof, (int, float)):
        return share(run, "flops", roof)
    measured, kind = getattr(roof, "measured", roof), (run.event("work") or {}).get("precision")
    there, here = (
        f"{m.name} on {m.threads} threads" if m.kind == "cpu" else m.name
        for m in (measured.machine, run.machine)
    )
    points = [p for p in measured.where(format=kind) if p.flops and len(p.seconds)]
    if there != here or (kind and not points):
        raise ValueError(
            f"the run is of {here} in {kind}, and the roof of {there} has no such product: "
            f"lk.measure('roofline', threads={run.machine.threads}, formats={kind!r}) there."
        )
    return share(run, "flops", max((p.flops / p.seconds[0] for p in points), default=None))
