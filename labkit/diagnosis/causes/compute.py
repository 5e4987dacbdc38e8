"""The device computes, but not as it could."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import WARNING, cause
from labkit.diagnosis.causes.launches import fused_optimizer, may_compile
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    ANOTHER_TRAINING,
    DEVICE_LIMIT,
    ROUNDED,
    Finding,
    Measured,
    Remedy,
    gain_without,
    remedy,
)
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.symptoms import explains

DOUBLE = "float64"
OVER_THE_BATCH = ("forward", "backward", "torch")  # parts of a loop's body: all but the update's
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
    if not formats:
        return Remedy(
            "some_16_bits",
            "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; "
            "sizes in multiples of 8.",
            "formats",
        )
    has_bf16 = formats[0] == "bf16"
    which = "BF16" if has_bf16 else "FP16 with a GradScaler (this card has no BF16)"
    return replace(
        BF16,
        key="sixteen_bits",
        text=f"Use autocast to {which}, sizes in multiples of 8.",
        changes={"precision": formats[0]},
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
    was_tried = xray is not None and xray.bf16_speedup is not None
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


ALIGNED = Remedy(
    "multiples_of_8",
    "Round layers, vocabulary and batch to multiples of 8, better 64.",
    "formats",
    cost="a few more weights",
    check=ANOTHER_TRAINING,
)


@cause("precision", "unaligned_sizes")
def unaligned_sizes(evidence: Evidence) -> Finding:
    """Tensor Cores run products of sizes that they have to pad.

    It costs HALF_SAVED of the time of these products, which is what a speed-up of TENSOR_CORE_GAIN
    saves.
    """
    odd = evidence.kernels.unaligned_share
    lost = odd * limits.HALF_SAVED * evidence.compute_share
    seen = "of kernel time is in products of sizes that are not a multiple of 8"
    takes = f"of the time is what that costs at {limits.TENSOR_CORE_GAIN:g}x"
    measured = (Measured(seen, odd, by=evidence.inside), Measured(takes, lost))
    return Finding("precision", "unaligned_sizes", lost, measured, (ALIGNED,))


@remedy
def fuse(evidence: Evidence) -> Remedy | None:
    """A model that may be compiled."""
    if not may_compile(evidence):
        return None
    return Remedy(
        "fuse",
        "Fuse elementwise operators: torch.compile, or a fused kernel.",
        "fusion",
        {"compile": "default"},
        cost="compiling at the start, and again for each new shape",
        check=ROUNDED,
        price=2,
    )


explains("busy-device", "elementwise_kernels")


@cause("busy-device", "elementwise_chains")
def elementwise(evidence: Evidence) -> Finding:
    """Elementwise operators, each of which reads and writes all of its data.

    Cause "elementwise_chains" on a CPU: it costs what one fused pass over each chain would save.
    Cause "elementwise_kernels" on a GPU, known by their names alone: it costs FUSION_SAVES of their
    time.
    """
    remedies = (fuse, fused_optimizer)
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

    It costs at most the share of the tokens that are filler, of the compute; on a CPU, whose
    samples show what computes, of its forward and backward passes: an optimizer's step takes as
    long for any batch.
    """
    filler = evidence.padding_share
    if not filler:
        return None
    over_tokens = evidence.compute_share
    loop = evidence.known("loop")
    parts = loop.lines.body if loop else {}
    if evidence.kind == "cpu" and parts:
        over_tokens *= sum(parts.get(part, 0.0) for part in OVER_THE_BATCH)
    lost = filler * over_tokens
    longest = evidence.padding_beyond * over_tokens
    lengths = f"lengths of the sequences, {evidence.source}"
    measured = [
        Measured("of the tokens are padding", filler, by=lengths),
        Measured("of the time is spent on it", lost, before="at most"),
    ]
    if longest:
        saved = "of the time, at most, goes if each batch is padded to its own longest text alone"
        measured.append(Measured(saved, longest))
    return Finding(
        "compute",
        "padding",
        lost,
        tuple(measured),
        (PAD_LESS,),
        at_most=gain_without(longest) if longest else None,
        is_bound=True,
    )


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


@remedy
def single_precision(evidence: Evidence) -> Remedy:
    """A model of 64 bits: its name in the script, and what converts a batch where it is float64."""
    model = (evidence.known("code") or LoopCode()).model or "model"
    batch = ""
    if evidence.batch.known("dtype") == DOUBLE:
        batch = "# and each batch, better once in the dataset: batch.float()\n"
    return Remedy(
        "single_precision",
        "Train in float32, and compare the metric. NumPy's arrays are float64 unless told "
        "otherwise, and torch.from_numpy keeps that. What it brings is unknown: measure it with a "
        "run before and after.",
        "formats",
        code=f"{model} = {model}.float()  # in place of double()\n{batch}",
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
    batches = " and the batches" if evidence.batch.known("dtype") == DOUBLE else ""
    measured = (
        Measured("of the time the device computes", evidence.compute_share, by=evidence.source),
        Measured(f"the weights{batches} are float64"),
    )
    return Finding("precision", DOUBLE, measured=measured, remedies=(single_precision,))


# -- where nothing is left -------------------------------------------------------------------------

NOTHING_LEFT = Remedy(
    "larger_batch_or_smaller_model",
    "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook 04 "
    "Batch sizing), a smaller model or a faster device.",
)


@remedy
def use_the_card(evidence: Evidence) -> Remedy | None:
    """A model on the CPU beside a GPU, with lines for a loop that is not a Trainer's."""
    card = evidence.spare_card
    if evidence.kind != "cpu" or evidence.known("weights_dtype") == DOUBLE:  # Apple's lack it
        return None
    model = (evidence.known("code") or LoopCode()).model or "model"
    how = "take use_cpu=True (or ACCELERATE_USE_CPU) out, and the Trainer does it"
    code = ""
    if not evidence.trainer:
        how = (
            "move the model before its optimizer is made, and each batch in the loop. Accelerate "
            "and Lightning do both themselves, without cpu=True and with accelerator='auto'"
        )
        code = (
            'device = torch.accelerator.current_accelerator(check_available=True) or "cpu"\n'
            f"{model} = {model}.to(device)  # before the optimizer is made\n"
            "# and in the loop, each tensor of a batch: x = x.to(device)\n"
        )
    return Remedy(
        "use_the_card",
        f"Train on the {card}: {how}. If torch sees no device, `labkit machine` says why. Many "
        "small operators can be slower there than on the CPU. What it brings is unknown: measure "
        "it with a run before and after.",
        code=code,
        cost="none, where the card is free",
        check=ROUNDED,
    )


@remedy
def profile_the_operators(evidence: Evidence) -> Remedy:
    """A watched loop without a loss: other number formats are named where they may gain."""
    formats = evidence.known("formats")
    told = ""
    if formats and evidence.known("weights_dtype") in (None, "float32"):
        which = "autocast" if formats == ("fp16",) else "TF32 or autocast"  # Volta, Turing
        told = f"{which} to 16 bits where it computes in float32 (notebook 05), "
    return Remedy(
        "profile_the_operators",
        "A watched loop sees the waiting for data, the lines of its body and the cores, and finds "
        "no loss there. It does not see inside the operators: profile a few steps with "
        "torch.profiler. If they are small, compute more samples in one call: a larger batch "
        "(notebook 04 Batch sizing), all steps of a sequence at once. If they are large and well "
        f"used, what is left is {told}a smaller model or a faster device.",
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
    remedies = (use_the_card, profile_the_operators) if evidence.loop else (NOTHING_LEFT,)
    return Finding("compute", DEVICE_LIMIT, 0.0, measured, remedies)
