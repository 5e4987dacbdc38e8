"""The device computes, but not as it could."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import WARNING, cause
from labkit.diagnosis.causes.launches import larger_kernels
from labkit.diagnosis.doubts import look_inside
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import (
    DEVICE_LIMIT,
    DOUBLE,
    LOW_MFU,
    ROUNDED,
    Finding,
    Measured,
    Remedy,
    explains,
    gain_without,
    loss,
)
from labkit.text import percent

COMPARE = "losses within 16-bit rounding, and the metric"

BF16 = Remedy(
    "bf16",
    "Set precision='bf16' and compare the losses.",
    "formats",
    {"precision": "bf16"},
    cost="accuracy: fewer digits",
    check=COMPARE,
    price=2,
)


@cause("precision", "FP32")
def full_precision(evidence: Evidence) -> Finding | None:
    """The heavy math runs in FP32: in BF16 this run's own step was faster.

    It costs what the same step, tried in BF16 after the run, saved.
    """
    speedup = evidence.xray.bf16_speedup
    if speedup <= 1:
        return None
    lost = (1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    by = "measured on this run's own step"
    return loss("precision", "FP32", lost, seen, BF16, by=by)


@cause("precision", "no_Tensor_Cores")
def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not, where BF16 was not tried.

    It costs HALF_SAVED of the time of these kernels, which is what a speed-up of TENSOR_CORE_GAIN
    saves.
    """
    could = evidence.kernels.eligible_share
    do = evidence.kernels.tensor_core_share
    formats = evidence.known("formats")
    if asked(full_precision, evidence) or formats == ():
        return None
    lost = max(0.0, could - do) * limits.HALF_SAVED * evidence.compute_share
    seen = "of the time is the cost of operators that could use Tensor Cores and do not, at "
    seen += f"{limits.TENSOR_CORE_GAIN:g}x, the low end of published gains"
    sixteen_bits = Remedy(
        "sixteen_bits",
        "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; sizes "
        "in multiples of 8.",
        "formats",
        {"precision": formats[0]} if formats else {},
        cost="accuracy: fewer digits",
        check=COMPARE,
        price=2,
    )
    return loss("precision", "no_Tensor_Cores", lost, seen, sixteen_bits, by=evidence.inside)


@cause("busy-device", "elementwise_chains")
def elementwise(evidence: Evidence) -> Finding:
    """Elementwise operators, each of which reads and writes all of its data.

    It costs what one fused pass over each chain would save.
    """
    xray = evidence.xray
    lost = xray.share(xray.fusible_us) * evidence.compute_share
    seen = "of the time goes to passes over memory that one fused pass would save"
    remedies = larger_kernels(evidence)
    name = "elementwise_chains"
    return loss("memory_bandwidth", name, lost, seen, *remedies, by=evidence.inside)


PAD_LESS = Remedy(
    "pad_less",
    "Batch sequences of a length together, pad to the longest of a batch, or pack several in a "
    "row. Where the model leaves padding out, as with pack_padded_sequence, it costs nothing.",
    "padding",
)


@cause("padding", "padding")
def padding(evidence: Evidence) -> Finding | None:
    """Batches of text hold filler tokens, on which the device computes for nothing.

    It costs at most the share of the tokens that are filler, of the compute.
    """
    filler = evidence.padding_share
    lost = filler * evidence.compute_share
    if not lost:
        return None
    seen = f"of the time, at most, is spent on padding, {percent(filler)} of the tokens"
    by = f"lengths of the sequences, {evidence.source}"
    more = {"at_most": gain_without(lost), "is_bound": True}
    return loss("compute", "padding", lost, seen, PAD_LESS, by=by, **more)


COOLER = Remedy(
    "cooler",
    "Check its cooling (airflow, dust, a hot card beside it), or lower its power limit.",
)


@cause("neighbour", "throttle", when=WARNING)
def held_down(evidence: Evidence) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be.

    It is found where HELD_DOWN of the readings or more show it.
    """
    heat = evidence.card.heat
    if heat.share < limits.HELD_DOWN:
        return None
    lost = heat.share * heat.slower * evidence.compute_share
    seen = "of the time goes to a clock that heat or a power brake holds down, by "
    seen += f"{heat.share:.0%} of the readings"
    return loss("compute", "throttle", lost, seen, COOLER, by="NVML's clock reasons")


SINGLE_PRECISION = Remedy(
    "single_precision",
    "Train in float32, and compare the metric. NumPy's arrays are float64 unless told otherwise, "
    "and torch.from_numpy keeps that. What it brings is unknown: measure it with a run before and "
    "after.",
    "formats",
    code="model = model.float()  # in place of double()\n"
    "# and each batch, better once in the dataset: batch.float()\n",
    cost="accuracy: 7 digits in place of 16",
    check="the metric, within float32's rounding",
)


@cause("precision", DOUBLE, when=WARNING)
def double_precision(evidence: Evidence) -> Finding | None:
    """A watched loop trains weights of 64 bits, as NumPy's arrays have by default.

    It is found where the device computes for BUSY of the time. What it costs is not known.
    """
    busy = evidence.compute_share
    if evidence.weights_dtype != DOUBLE or busy < limits.BUSY:
        return None
    seen = "of the time the device computes, and the weights are float64"
    measured = (Measured(seen, busy, by=evidence.source),)
    return Finding("precision", DOUBLE, measured=measured, remedies=(SINGLE_PRECISION,))


@cause("busy-device", LOW_MFU, when=WARNING)
def low_mfu(evidence: Evidence) -> Finding | None:
    """A busy device does little of what it could.

    It is found where the device is busy for BUSY of the time, and its MFU is less than LOW_MFU of
    """
    busy = evidence.compute_share
    peak = evidence.peak
    if busy < limits.BUSY or evidence.mfu >= limits.LOW_MFU * busy:
        return None
    seen = f"of the time busy, with an MFU of {percent(evidence.mfu)} (of {peak})"
    measured = (Measured(seen, busy, by=f"threshold {limits.LOW_MFU:.0%} of the busy time"),)
    return Finding("compute", LOW_MFU, measured=measured, remedies=(look_inside(evidence),))


# -- where nothing is left -------------------------------------------------------------------------

NOTHING_LEFT = Remedy(
    "larger_batch_or_smaller_model",
    "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook 04 "
    "Batch sizing), a smaller model or a faster device.",
)
USE_THE_CARD = Remedy(
    "use_the_card",
    "Train on the GPU: move the model before its optimizer is made, and each batch in the loop. A "
    "Trainer, Accelerate and Lightning do both themselves, without use_cpu=True, cpu=True or "
    "accelerator='cpu'. If torch sees no device, `labkit machine` says why. Many small operators "
    "can be slower there than on the CPU. What it brings is unknown: measure it with a run before "
    "and after.",
    code='device = torch.accelerator.current_accelerator(check_available=True) or "cpu"\n'
    "model = model.to(device)  # before the optimizer is made\n"
    "# and in the loop, each tensor of a batch: x = x.to(device)\n",
    cost="none, where the card is free",
    check=ROUNDED,
)
PROFILE_THE_OPERATORS = Remedy(
    "profile_the_operators",
    "A watched loop sees the waiting for data, the lines of its body and the cores, and finds no "
    "loss there. It does not see inside the operators: profile a few steps with torch.profiler. If "
    "they are small, compute more samples in one call: a larger batch (notebook 04 Batch sizing), "
    "all steps of a sequence at once. If they are large and well used, what is left is a number "
    "format of fewer bits (notebook 05), a smaller model or a faster device.",
)


explains("busy-device", DEVICE_LIMIT)


def nothing_lost(evidence: Evidence, losses: dict[str, float]) -> Finding:
    """Return the verdict that no loss is worth a name: `losses` are those of each bottleneck."""
    limit = limits.WORTH_NAMING
    name = max(losses, key=lambda each: losses[each] / limit[each])
    near = f"of the time is {name}, the nearest loss, with a threshold of {limit[name]:.0%}"
    computes = "the host is in the loop's body" if evidence.launches_only else "the device computes"
    seen = f"of the time {computes}, and no loss reaches its threshold"
    measured = (
        Measured(seen, evidence.compute_share, by=evidence.source),
        Measured(near, losses[name]),
    )
    remedy = PROFILE_THE_OPERATORS if evidence.known("loop") else NOTHING_LEFT
    remedies = (USE_THE_CARD, remedy) if evidence.known("spare_card") else (remedy,)
    return Finding("compute", DEVICE_LIMIT, 0.0, measured, remedies)
