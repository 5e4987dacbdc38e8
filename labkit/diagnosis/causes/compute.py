"""The device computes, but not as it could."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.launches import larger_kernels
from labkit.diagnosis.doubts import LOOK_INSIDE
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import DEVICE_LIMIT, LOSS, WARNING, Finding, Remedy, cause, loss
from labkit.text import percent

BF16 = Remedy(
    "bf16",
    "Set precision='bf16' and compare the losses.",
    "formats",
    {"precision": "bf16"},
)


@cause(LOSS)
def full_precision(evidence: Evidence) -> Finding | None:
    """The heavy math runs in FP32: in BF16 this run's own step was faster. Cause "FP32".

    It costs what the same step, tried in BF16 after the run, saved.
    """
    speedup = evidence.xray.get("bf16_speedup") or 0.0
    if speedup <= 1:
        return None
    lost = (1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    return loss("precision", "FP32", lost, seen, "measured on this run's own step", BF16)


@cause(LOSS)
def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not, where BF16 was not tried: "no_Tensor_Cores".

    It costs HALF_SAVED of the time of these kernels, which is what a speed-up of TENSOR_CORE_GAIN
    saves.
    """
    kernels, formats = evidence.kernels, evidence.known("formats")
    could = (kernels.tensor_core_eligible_share or 0.0) - (kernels.tensor_core_share or 0.0)
    if asked(full_precision, evidence) or formats == ():
        return None
    lost = max(0.0, could) * limits.HALF_SAVED * evidence.compute_share
    seen = "of the time is the cost of operators that could use Tensor Cores and do not, at "
    seen += f"{limits.TENSOR_CORE_GAIN:g}x, the low end of published gains"
    sixteen_bits = Remedy(
        "sixteen_bits",
        "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; sizes "
        "in multiples of 8.",
        "formats",
        {"precision": formats[0]} if formats else {},
    )
    return loss("precision", "no_Tensor_Cores", lost, seen, evidence.inside, sixteen_bits)


@cause(LOSS)
def elementwise(evidence: Evidence) -> Finding:
    """Elementwise operators, each of which reads and writes its data: "elementwise_chains".

    It costs what one fused pass over each chain would save.
    """
    lost = evidence.in_xray("fusible_us") * evidence.compute_share
    seen = "of the time goes to passes over memory that one fused pass would save"
    name, remedies = "elementwise_chains", larger_kernels(evidence)
    return loss("memory_bandwidth", name, lost, seen, evidence.inside, *remedies)


PAD_LESS = Remedy(
    "pad_less",
    "Batch sequences of a length together, pad to the longest of a batch, or pack several in a "
    "row. Where the model leaves padding out, as with pack_padded_sequence, it costs nothing.",
    "padding",
)


@cause(LOSS)
def padding(evidence: Evidence) -> Finding:
    """Batches of text hold filler tokens, on which the device computes for nothing: "padding".

    It costs at most the share of the tokens that are filler, of the compute.
    """
    filler = evidence.padding
    lost = filler * evidence.compute_share
    seen = f"of the time, at most, is spent on padding, {percent(filler)} of the tokens"
    return loss("compute", "padding", lost, seen, f"lengths, {evidence.source}", PAD_LESS)


COOLER = Remedy(
    "cooler",
    "Check its cooling (airflow, dust, a hot card beside it), or lower its power limit.",
)


@cause(WARNING)
def throttled(evidence: Evidence) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be. Cause "throttle".

    It is found where HELD_DOWN of the readings or more show it. What it costs is not known.
    """
    if evidence.heat < limits.HELD_DOWN:
        return None
    seen = f"Heat or a power brake holds the clock down in {evidence.heat:.0%} of the readings "
    seen += "(NVML's clock reasons)."
    return Finding("compute", "throttle", evidence=seen, remedies=(COOLER,))


SINGLE_PRECISION = Remedy(
    "single_precision",
    "Train in float32, and compare the metric. NumPy's arrays are float64 unless told otherwise, "
    "and torch.from_numpy keeps that. What it brings is unknown: measure it with a run before and "
    "after.",
    "formats",
    code="# model = model.float()  # in place of double()\n"
    "# and each batch, better once in the dataset: batch.float()\n",
)


@cause(WARNING)
def double_precision(evidence: Evidence) -> Finding | None:
    """A watched loop trains weights of 64 bits, as NumPy's arrays have by default: "float64".

    It is found where the device computes for BUSY of the time. What it costs is not known.
    """
    busy = evidence.compute_share
    if evidence.weights_dtype != "float64" or busy < limits.BUSY:
        return None
    seen = f"{busy:.0%} of the time the device computes, and the weights are float64."
    return Finding("precision", "float64", evidence=seen, remedies=(SINGLE_PRECISION,))


@cause(WARNING)
def low_mfu(evidence: Evidence) -> Finding | None:
    """A busy device does little of what it could: cause "low_MFU".

    It is found where the device is busy for BUSY of the time, and its MFU is less than LOW_MFU of
    that.
    """
    busy = evidence.compute_share
    if busy < limits.BUSY or evidence.mfu >= limits.LOW_MFU * busy:
        return None
    seen = f"{busy:.0%} of the time busy, with an MFU of {percent(evidence.mfu)} (of "
    seen += f"{evidence.peak}; threshold {limits.LOW_MFU:.0%} of the busy time)."
    return Finding("compute", "low_MFU", evidence=seen, advice=LOOK_INSIDE)


# -- where nothing is left -------------------------------------------------------------------------

NOTHING_LEFT = (
    "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook 04 "
    "Batch sizing), a smaller model or a faster device."
)
PROFILE_THE_OPERATORS = (
    "A watched loop sees the waiting for data, the lines of its body and the cores, and finds no "
    "loss there. It does not see inside the operators: profile a few steps with torch.profiler. If "
    "they are small, compute more samples in one call: a larger batch (notebook 04 Batch sizing), "
    "all steps of a sequence at once. If they are large and well used, what is left is a number "
    "format of fewer bits (notebook 05), a smaller model or a faster device."
)


def nothing_lost(evidence: Evidence, losses: dict[str, float]) -> Finding:
    """Return the verdict that no loss is worth a name: `losses` are those of each bottleneck."""
    limit = limits.WORTH_NAMING
    name = max(losses, key=lambda each: losses[each] / limit[each])
    seen = f"{evidence.compute_share:.0%} of the time the loop computes, and no loss reaches its "
    seen += f"threshold; the nearest is {name} with {losses[name]:.0%} (threshold {limit[name]:.0%}"
    seen += f"; {evidence.source})."
    advice = PROFILE_THE_OPERATORS if evidence.watched else NOTHING_LEFT
    return Finding("compute", DEVICE_LIMIT, evidence=seen, advice=advice)
