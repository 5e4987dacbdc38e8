"""The device computes, but not as it could."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import WARNING, cause
from labkit.diagnosis.causes.launches import compiled, fused_optimizer
from labkit.diagnosis.doubts import look_inside
from labkit.diagnosis.evidence import Evidence
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
    remedy,
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
    if speedup <= 0:
        return None
    lost = max(0.0, 1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    measured = (Measured(seen, lost, by="measured on this run's own step"),)
    return Finding("precision", "FP32", lost, measured, (BF16,))


@remedy
def sixteen_bits(evidence: Evidence) -> Remedy:
    """Kernels that could use Tensor Cores: BF16 before FP16, where the card's formats are known."""
    formats = evidence.known("formats")
    return Remedy(
        "sixteen_bits",
        "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; sizes "
        "in multiples of 8.",
        "formats",
        {"precision": formats[0]} if formats else {},
        cost="accuracy: fewer digits",
        check=COMPARE,
        price=2,
    )


@cause("precision", "no_Tensor_Cores")
def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not, where BF16 was not tried.

    It costs HALF_SAVED of the time of these kernels, which is what a speed-up of TENSOR_CORE_GAIN
    saves.
    """
    could = evidence.kernels.eligible_share
    do = evidence.kernels.tensor_core_share
    xray = evidence.known("xray")
    was_tried = xray is not None and xray.known("bf16_speedup") is not None
    if was_tried or evidence.known("formats") == ():
        return None
    lost = max(0.0, could - do) * limits.HALF_SAVED * evidence.compute_share
    can = "of kernel time is in operators that can use Tensor Cores"
    gain = f"{limits.TENSOR_CORE_GAIN:g}x, the low end of published gains"
    measured = (
        Measured(can, could, by=evidence.inside),
        Measured("of it does", do),
        Measured(f"of the time is what that costs at {gain}", lost),
    )
    return Finding("precision", "no_Tensor_Cores", lost, measured, (sixteen_bits,))


explains("busy-device", "elementwise_kernels")


@cause("busy-device", "elementwise_chains")
def elementwise(evidence: Evidence) -> Finding:
    """Elementwise operators, each of which reads and writes all of its data.

    Cause "elementwise_chains" on a CPU: it costs what one fused pass over each chain would save.
    Cause "elementwise_kernels" on a GPU, known by their names alone: it costs FUSION_SAVES of their
    time.
    """
    remedies = (compiled, fused_optimizer)
    if evidence.kind == "cpu":
        xray = evidence.xray
        lost = xray.share(xray.fusible_us) * evidence.compute_share
        seen = "of the time goes to passes over memory that one fused pass would save"
        of_all = xray.share(xray.elementwise_us)
        measured = (
            Measured(seen, lost, by=evidence.inside),
            Measured("of the compute is elementwise operators", of_all),
        )
        return Finding("memory_bandwidth", "elementwise_chains", lost, measured, remedies)
    moving = evidence.kernels.moving_share
    running = 1 - evidence.gap_share  # of the compute
    lost = moving * limits.FUSION_SAVES * running * evidence.compute_share
    seen = "of kernel time is in elementwise kernels, which only move data"
    saves = Measured("of the time", lost, before="one pass instead of two would save")
    measured = (Measured(seen, moving, by=evidence.inside), saves)
    return Finding("memory_bandwidth", "elementwise_kernels", lost, measured, remedies)


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
    lengths = f"lengths of the sequences, {evidence.source}"
    measured = (
        Measured("of the tokens are padding", filler, by=lengths),
        Measured("of the time is spent on it", lost, before="at most"),
    )
    most = gain_without(lost)
    return Finding("compute", "padding", lost, measured, (PAD_LESS,), at_most=most, is_bound=True)


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
    seen = "of the readings show heat or a power brake holding the card's clock down"
    measured = [Measured(seen, heat.share, by="NVML's clock reasons")]
    if heat.slower is not None:
        measured.append(Measured("of its highest clock here is left", 1 - heat.slower))
    lost = heat.share * (heat.slower or 0.0) * evidence.compute_share
    return Finding("compute", "throttle", lost, tuple(measured), (COOLER,))


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
    if evidence.weights_dtype != DOUBLE or evidence.compute_share < limits.BUSY:
        return None
    measured = (
        Measured("of the time the device computes", evidence.compute_share, by=evidence.source),
        Measured("the weights are float64"),
    )
    return Finding("precision", DOUBLE, measured=measured, remedies=(SINGLE_PRECISION,))


LARGER = Remedy(
    "larger_batch_or_width",
    "Raise the batch or the width: more arithmetic for each launch and each byte.",
)


@cause("busy-device", LOW_MFU, when=WARNING)
def low_mfu(evidence: Evidence) -> Finding | None:
    """A busy device does little of what it could.

    It is found where the device is busy for BUSY of the time, and its MFU is less than LOW_MFU of
    that. Where a step does fewer FLOPs for each byte than the device's ridge, memory is why.
    """
    busy = evidence.compute_share
    taken = evidence.stolen_by_others + (evidence.known("stolen_by_workers") or 0.0)
    peak = evidence.peak
    if busy < limits.BUSY or evidence.mfu >= limits.LOW_MFU * (busy - taken):
        return None
    seen = f"of the time busy, with an MFU of {percent(evidence.mfu)} (of {peak})"
    measured = [Measured(seen, busy, by=f"threshold {limits.LOW_MFU:.0%} of the busy time")]
    intensity = evidence.known("flop_per_byte")
    if not intensity or not peak.ridge or intensity >= peak.ridge:
        return Finding("compute", LOW_MFU, measured=tuple(measured), remedies=(look_inside,))
    moves = f"memory-bound, at most {intensity:.3g} FLOP for each byte that moves"
    measured.append(Measured(f"{moves}, and the ridge is at {peak.ridge:.3g}"))
    return Finding("compute", LOW_MFU, measured=tuple(measured), remedies=(LARGER,))


# -- where nothing is left -------------------------------------------------------------------------

NOTHING_LEFT = Remedy(
    "larger_batch_or_smaller_model",
    "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook 04 "
    "Batch sizing), a smaller model or a faster device.",
)


@remedy
def use_the_card(evidence: Evidence) -> Remedy:
    """A model on the CPU beside a GPU."""
    return Remedy(
        "use_the_card",
        f"Train on the {evidence.spare_card}: move the model before its optimizer is made, and "
        "each batch in the loop. A Trainer, Accelerate and Lightning do both themselves, without "
        "use_cpu=True, cpu=True or accelerator='cpu'. If torch sees no device, `labkit machine` "
        "says why. Many small operators can be slower there than on the CPU. What it brings is "
        "unknown: measure it with a run before and after.",
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
    remedies = (use_the_card, PROFILE_THE_OPERATORS) if evidence.known("loop") else (NOTHING_LEFT,)
    return Finding("compute", DEVICE_LIMIT, 0.0, measured, remedies)
