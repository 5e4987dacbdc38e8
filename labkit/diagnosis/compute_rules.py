"""Rules for a device that computes, but not as it could."""

from __future__ import annotations

from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, costs, gain_without

OVER_THE_BATCH = ("forward", "backward", "torch")  # parts of a loop's body: all but the update's


def full_precision(evidence: Evidence) -> Finding | None:
    """The heavy math runs in FP32: in BF16 this run's own step was faster.

    Cause "FP32". It costs what the same step, tried in BF16 after the run, saved.
    """
    speedup = evidence.xray.bf16_speedup if evidence.xray else None
    if not speedup or speedup < 0:
        return None
    lost = max(0.0, 1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    return costs("precision", "FP32", lost, seen, "measured on this run's own step", cures.BF16)


def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not.

    Cause "no_Tensor_Cores", where BF16 was not tried. It costs HALF_SAVED of the time of these
    kernels, which is what a speed-up of TENSOR_CORE_GAIN saves.
    """
    kernels = evidence.kernels
    if kernels is None or kernels.eligible_share is None or evidence.formats == ():
        return None
    if evidence.xray and evidence.xray.bf16_speedup is not None:
        return None  # measured: better than told by names
    idle = max(0.0, kernels.eligible_share - kernels.tensor_core_share)
    lost = idle * limits.HALF_SAVED * evidence.compute_share
    can = "of kernel time is in operators that can use Tensor Cores"
    seen = (
        f"of the time is what that costs at {limits.TENSOR_CORE_GAIN:g}x, the low end of "
        "published gains"
    )
    return Finding(
        "precision",
        "no_Tensor_Cores",
        lost,
        (
            Measured(can, kernels.eligible_share, by=evidence.inside),
            Measured("of it does", kernels.tensor_core_share),
            Measured(seen, lost),
        ),
        (cures.SIXTEEN_BITS if evidence.formats else cures.SOME_16_BITS,),
    )


def unaligned_sizes(evidence: Evidence) -> Finding | None:
    """Tensor Cores run products of sizes that they have to pad.

    Cause "unaligned_sizes". It costs HALF_SAVED of the time of these products, which is
    what a speed-up of TENSOR_CORE_GAIN saves.
    """
    odd = evidence.kernels.unaligned_share if evidence.kernels else None
    if odd is None:
        return None
    lost = odd * limits.HALF_SAVED * evidence.compute_share
    seen = "of kernel time is in products of sizes that are not a multiple of 8"
    takes = f"of the time is what that costs at {limits.TENSOR_CORE_GAIN:g}x"
    measured = (Measured(seen, odd, by=evidence.inside), Measured(takes, lost))
    return Finding("precision", "unaligned_sizes", lost, measured, (cures.ALIGNED,))


def elementwise_chains(evidence: Evidence) -> Finding | None:
    """Chains of elementwise operators, each of which reads and writes all of its data (a CPU).

    Cause "elementwise_chains". It costs what one fused pass over each chain would save.
    """
    xray = evidence.xray
    if evidence.kind != "cpu" or xray is None:
        return None
    lost = xray.share(xray.fusible_us) * evidence.compute_share
    seen = "of the time goes to passes over memory that one fused pass would save"
    takes = Measured("of the compute is elementwise operators", xray.share(xray.elementwise_us))
    measured = (Measured(seen, lost, by=evidence.inside), takes)
    remedies = (cures.FUSE, cures.FUSED_UPDATE)
    return Finding("memory_bandwidth", "elementwise_chains", lost, measured, remedies)


def elementwise_kernels(evidence: Evidence) -> Finding | None:
    """Kernels that only read and write data, known by their names alone (a GPU).

    Cause "elementwise_kernels". It costs FUSION_SAVES of their time.
    """
    kernels = evidence.kernels
    if evidence.kind != "gpu" or kernels is None or kernels.moving_share is None:
        return None
    running = 1 - evidence.gap_share  # of the compute
    lost = kernels.moving_share * limits.FUSION_SAVES * running * evidence.compute_share
    seen = "of kernel time is in elementwise kernels, which only move data"
    saves = Measured("of the time", lost, before="one pass instead of two would save")
    measured = (Measured(seen, kernels.moving_share, by=evidence.inside), saves)
    remedies = (cures.FUSE, cures.FUSED_UPDATE)
    return Finding("memory_bandwidth", "elementwise_kernels", lost, measured, remedies)


def padding(evidence: Evidence) -> Finding | None:
    """Batches of text hold filler tokens, on which the device computes for nothing.

    Cause "padding". It costs at most the share of the tokens that are filler, of the compute; on a
    CPU, whose samples show what computes, of its forward and backward passes: an optimizer's step
    takes as long for any batch.
    """
    if not evidence.padding_share:
        return None
    over_tokens = evidence.compute_share
    parts = evidence.loop.lines.body if evidence.loop else {}
    if evidence.kind == "cpu" and parts:
        over_tokens *= sum(parts.get(part, 0.0) for part in OVER_THE_BATCH)
    lost = evidence.padding_share * over_tokens
    longest = evidence.padding_beyond * over_tokens
    saved = "of the time, at most, goes if each batch is padded to its own longest text alone"
    lengths = f"lengths of the sequences, {evidence.source}"
    return Finding(
        "compute",
        "padding",
        lost,
        (
            Measured("of the tokens are padding", evidence.padding_share, by=lengths),
            Measured("of the time is spent on it", lost, before="at most"),
            *([Measured(saved, longest)] if longest else ()),
        ),
        (cures.PAD_LESS,),
        at_most=gain_without(longest) if longest else None,
        is_bound=True,
    )


def held_down(evidence: Evidence) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be.

    Cause "throttle", where HELD_DOWN of the readings or more show it.
    """
    heat = evidence.card.heat
    if heat is None or heat.share < limits.HELD_DOWN:
        return None
    seen = "of the readings show heat or a power brake holding the card's clock down"
    measured = [Measured(seen, heat.share, by="NVML's clock reasons")]
    if heat.slower is not None:
        measured.append(Measured("of its highest clock here is left", 1 - heat.slower))
    lost = heat.share * (heat.slower or 0.0) * evidence.compute_share
    return Finding("compute", "throttle", lost, tuple(measured), (cures.COOLER,))
