"""MFU and MBU: how much of what the device could do the model really needed.

MFU: the FLOPs of the model's forward and backward pass over what the peak allows in the time
(Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). MBU: the same of bytes, a lower bound of
the traffic (both counted in `labkit.bench.flops`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.datasheets import card
from labkit.diagnosis.doubts import LOOK_INSIDE, MAKERS_PROFILER
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.remedies import Remedy
from labkit.results.event_log import of_one_moment
from labkit.results.hardware import Machine
from labkit.results.measurements import Measurements
from labkit.results.record import Event
from labkit.results.result import Result, Table, percent
from labkit.results.run import Run

NO_PEAK = 1.25  # 3x3 kernels on 8x8 pixels, an eighth of whose products are with padding, and 10 %
LARGER = Remedy(
    "larger", "Raise the batch or the width: more arithmetic for each launch and each byte."
)
FUSE_OTHERS = Remedy("fuse_others", "Fuse the others: torch.compile, fused_optimizer=True.")
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
BANDWIDTH = "bandwidth"  # what `labkit.bench.peaks` calls memory's rate
ROOFS = (BANDWIDTH, "fp32", "tf32", "fp16", "bf16")  # what `lk.peaks` measures


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
        memory = f", {self.byte_per_s / 1e9:.4g} GB/s" if self.byte_per_s else ""
        rate = in_words(self.flop_per_s)
        return f"{rate} in {self.precision.upper()}{memory}, {self.source}"


def in_words(flop_per_s: float) -> str:
    """Return a rate with its unit: "93.3 GFLOP/s"."""
    scale, unit = next((each for each in SCALES if flop_per_s >= each[0]), SCALES[-1])
    return f"{flop_per_s / scale:.3g} {unit}FLOP/s"


@dataclass(frozen=True, repr=False)
class Peaks(Result):
    """What a device was measured to reach, on one day: of memory, and in each number format."""

    machine: Machine
    day: str
    gb_per_s: float | None  # of its memory, 10^9 byte/s
    tflop_per_s: dict[str, float]  # 10^12 FLOP/s by format, of large matrix products
    missing: dict[str, str] = field(default_factory=dict)  # why a rate was not measured
    varied: tuple[str, ...] = ()  # rates that were measured while times varied by more than 10 %

    @classmethod
    def of(cls, measured: Measurements) -> Peaks:
        """Build from the rows that `lk.peaks` measured."""
        rows = measured.rows.drop_duplicates("of", keep="last").set_index("of")
        rows = rows.rename(index={BANDWIDTH: "memory"})
        known = rows[rows["error"].isna()]
        rates = dict(zip(known.index, known["per_s"].astype(float), strict=True))
        memory = rates.pop("memory", None)
        failed = rows["error"].dropna().astype(str)
        return cls(
            machine=replace(measured.machine, threads=int(known["threads"].max())),
            day=known["day"].max(),
            gb_per_s=memory and memory / 1e9,
            tflop_per_s={name: rate / 1e12 for name, rate in rates.items()},
            missing=failed.str.removeprefix("skipped: ").to_dict(),
            varied=tuple(known.index[known["varied"].astype(bool)]),
        )

    def table(self) -> Table:
        """Return a row for each rate, with the format's ridge."""
        memory = f"{self.gb_per_s:,.4g} GB/s" if self.gb_per_s else None
        rows: list[tuple[str, str | None, str | None]] = [("memory", memory, "")]
        for name, rate in self.tflop_per_s.items():
            ridge = f"{rate * 1e3 / self.gb_per_s:,.3g} FLOP/byte" if self.gb_per_s else None
            rows.append((name, in_words(rate * 1e12), ridge))
        notes = [f"{name}: {why}" for name, why in self.missing.items()]
        if self.varied:
            again = "on a quiet machine, measure again: lk.peaks(again=True)."
            notes.append(f"noisy: {', '.join(self.varied)}; {again}")
        return Table(
            rows,
            head=("", "measured", "ridge"),
            title=f"{self.machine.line}, on {self.day}",
            foot=notes,
        )


@of_one_moment
def peak(run: Run) -> Peak | None:
    """Return the peak of a run's device: a listed GPU's data sheet's, dense, in its precision.

    Else what `lk.peaks()` had measured there, on as many threads, before the run ended; or None.
    """
    work = run.event("work")
    if work is None:
        return None
    machine = run.machine
    kind = work["precision"]
    sheet = card(machine.name) if machine.kind == "gpu" else None
    if sheet and kind in sheet.tflop_per_s:
        rate = sheet.tflop_per_s[kind] * 1e12
        return Peak(rate, sheet.gb_per_s * 1e9, kind, f"data sheet of {sheet.name}")
    rates = work.get("roof") or {}
    if not rates.get(kind):
        return None
    source = f"measured {f'on {machine.name}' if run.recorded else 'here'}"
    if machine.kind == "cpu" and machine.threads:
        source += f" on {machine.threads} thread{'' if machine.threads == 1 else 's'}"
    return Peak(rates[kind], rates.get(BANDWIDTH), kind, source)


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


def with_low_mfu(run: Run, evidence: Evidence, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Add a finding where a busy device does little of what it could; last: no loss of its own."""
    reached = run.mfu
    reference = run.peak
    work = run.event("work")
    busy = evidence.compute_share
    taken = evidence.stolen_by_others + (evidence.stolen_by_workers or 0.0)  # of a CPU's core
    if reached is None or reference is None or work is None or evidence.launches_only:
        return found
    if busy < limits.BUSY or reached >= limits.LOW_MFU * (busy - taken):
        return found
    reason, remedy = _reason(work, reference, run.mbu, evidence, reached)
    low = Finding(
        name="compute",
        cause="low MFU",
        measured=(
            Measured(f"of the time busy, with an MFU of {percent(reached)} (of {reference})", busy),
            Measured(reason, by=f"threshold {limits.LOW_MFU:.0%} of the busy time"),
        ),
        remedies=(remedy,),
    )
    if found[-1].cause == "the device is the limit":
        return *found[:-1], replace(low, measured=low.measured + found[-1].measured)
    return *found, low


def _reason(
    work: Event, reference: Peak, mbu: float | None, evidence: Evidence, reached: float
) -> tuple[str, Remedy]:
    """Return why an MFU of `reached` is low, and what to change."""
    ridge = reference.ridge
    intensity = work["flops"] / max(work["bytes"], 1)
    if ridge and mbu is not None and intensity < ridge:
        moves = f"memory-bound, at most {intensity:.3g} FLOP for each byte that moves"
        return f"{moves}, and the ridge is at {ridge:.3g}", LARGER
    heavy = _heavy_share(evidence)
    if heavy is None:
        return "why was not seen", MAKERS_PROFILER if evidence.xray else LOOK_INSIDE
    seen = f"products and convolutions take {heavy:.0%} of the compute"
    if heavy < limits.MOSTLY:
        return f"memory-bound operators, {seen}", FUSE_OTHERS
    of_peak = reached / max(evidence.compute_share * heavy, 1e-9)
    return f"small sizes, {seen} and reach {of_peak:.0%} of the peak", LARGER


def _heavy_share(evidence: Evidence) -> float | None:
    """Return the share of the compute in products and convolutions; None where it was not seen."""
    if evidence.kind == "gpu":  # the x-ray's operators are launches there
        return evidence.kernels.eligible_share if evidence.kernels else None
    xray = evidence.xray
    return None if xray is None else xray.share(xray.heavy_us or 0.0)
