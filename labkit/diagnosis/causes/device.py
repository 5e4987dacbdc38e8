"""The device waits for the host's work, or computes, but not as it could."""

from __future__ import annotations

import re

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.body import BESIDES, copies_in_the_body
from labkit.diagnosis.causes.loader import INTO_A_DATASET
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    LOOK_INSIDE,
    LOSS,
    WARNING,
    Finding,
    Remedy,
    cause,
    evaluate,
    loss,
)
from labkit.text import percent

MORE_PER_CALL = Remedy(
    "more_per_call",
    "Give the device more work per call: a larger batch, batched operations instead of Python "
    "loops in forward, or torch.compile.",
)
FUSED = Remedy(
    "fused_optimizer",
    "Use a fused optimizer (fused_optimizer=True).",
    {"fused_optimizer": True},
)


def larger_kernels(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what makes kernels fewer and larger: a compiled model, a fused optimizer.

    A graph's next replay overwrites the gradients that accumulation has to keep: PyTorch raises
    (pytorch/pytorch#169545).
    """
    knobs = evidence.knobs
    found = []
    if evidence.compiles and not (knobs.get("compile") or evidence.is_compiled):
        has_graphs = evidence.kind == "gpu" and knobs.get("accumulation_steps") == 1
        compiled = Remedy(
            "compile",
            "Launch fewer and larger kernels: torch.compile (reduce-overhead adds CUDA graphs, but "
            "breaks gradient accumulation and records each batch size anew), a larger batch, no "
            ".item() in the step.",
            {"compile": "reduce-overhead" if has_graphs else "default"},
        )
        found.append(compiled)
    if knobs.get("fused_optimizer") is False:
        found.append(FUSED)
    return tuple(found)


@cause(LOSS, "Python_and_tiny_operators")
def tiny_operators(evidence: Evidence) -> Finding | None:
    """Python and the dispatch of small operators take a CPU's time: "Python_and_tiny_operators".

    It costs the share of the x-ray's steps between operators and in those of under 10 µs, times the
    share of the time spent on compute.
    """
    if evidence.kind != "cpu":
        return None
    # The profiler's own cost (1 to 2 µs an operator) is in it: the threshold was calibrated so
    lost = evidence.compute_share * evidence.in_xray("gap_us", "tiny_us")
    seen = "of the time, inside the compute, goes to Python and to operators of under 10 µs"
    remedies = (MORE_PER_CALL, *larger_kernels(evidence))
    return loss("launch", "symptoms/launches.md", lost, seen, "x-ray", *remedies)


NO_SYNCHRONISING = Remedy(
    "no_synchronising",
    "Do not wait for the device in every step: collect losses on it, and read them rarely. A "
    "package has a setting for that: TrainingArguments(logging_nan_inf_filter=False) of Hugging "
    "Face's Trainer. A GradScaler waits as well: autocast to BF16 needs none.",
    code="# total += loss.detach()  # and only now and then: total.item()\n",
)


@cause(LOSS, "gaps_or_small_kernels", "sync")
def idle_while_busy(evidence: Evidence) -> Finding | None:
    """A GPU, busy by its events, did little: so the x-ray's kernels, or a second instrument.

    Cause "gaps_or_small_kernels"; "sync" where the body's lines wait for the device for
    WORTH_NAMING of it. It costs what is left of the busy time, without what the body's other causes
    find.
    """
    busy, kernels = evidence.compute_share, evidence.known("kernels")
    if kernels is not None:
        idle = max(0.0, 1 - kernels.kernel_us / max(evidence.compute_us, 1e-9))
        told = f"kernels take {kernels.kernel_us / 1e3:.1f} of {evidence.compute_us / 1e3:.1f} ms"
    else:
        told, idle = evidence.witness
    if not idle:
        return None
    seen = f"of the time, while the device is busy by its events, it waits or does little: {told}"
    copying = evaluate(copies_in_the_body, evidence)
    # The host's work alone and copies are findings of their own
    besides = busy * sum(evidence.body.get(part, 0.0) for part in BESIDES)
    besides += copying.lost_share if copying else 0.0
    lost = max(0.0, idle * busy - besides)
    page, name, rows = "symptoms/launches.md", "gaps_or_small_kernels", ()
    remedies = (*larger_kernels(evidence), MORE_PER_CALL)
    waits = evidence.body.get("sync", 0.0)
    if waits >= limits.WORTH_NAMING["launch"]:
        lines = evidence.lines
        page, name = "symptoms/loop-body.md", "sync"
        rows = lines.rows(lines.mask("body", "sync"))[:3]
        seen += f"; for {waits:.0%} of its body the host waits in {rows[0].what}"
        remedies = (NO_SYNCHRONISING, *remedies)
    by = evidence.source
    return loss("launch", page, lost, seen, by, *remedies, cause=name, lines=rows)


# -- between the steps -----------------------------------------------------------------------------

# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)
OUT_OF_THE_LOOP = Remedy(
    "out_of_the_loop",
    "Take logging, checkpoints, evaluation, preparing data and .item() out of the loop, or do them "
    "rarely or in another process; with_stack=True of torch.profiler records where they are.",
)


@cause(LOSS, "host_work", "issuing_work")
def host_work(evidence: Evidence) -> Finding:
    """The host does something else, or issues work, while the device waits.

    Cause "host_work", of a trace "issuing_work". It costs the share of the time in which the device
    waits for neither data nor a copy.
    """
    lost = evidence.other_share + evidence.launch_share
    seen = "of the time the device waits while the host does something but data and copies"
    page, name, remedies = "symptoms/loop-body.md", "host_work", (OUT_OF_THE_LOOP,)
    if evidence.known("trace") is not None:
        seen = "of the time the device waits while the host issues work"
        page, name = "symptoms/launches.md", "issuing_work"
        remedies = (*larger_kernels(evidence), MORE_PER_CALL)
    return loss("launch", page, lost, seen, evidence.source, *remedies, cause=name)


@cause(LOSS, "host_work", "data_prepared_outside_a_DataLoader")
def outside_pytorch(evidence: Evidence) -> Finding | None:
    """The host does what the profiler knows nothing of, while the device waits (a trace).

    Cause "data_prepared_outside_a_DataLoader", where a function's name says so (`PREPARES`); else
    "host_work". It costs the share of the time spent so.
    """
    names = ", ".join(evidence.trace.host_where)
    seen = "of the time the device waits for host work outside of PyTorch"
    seen += f", most of it in {names}" if names else ""
    where, name, remedy = ("host", "symptoms/loop-body.md"), "host_work", OUT_OF_THE_LOOP
    if PREPARES.search(names):
        where = "input", "symptoms/too-few-workers.md"
        name, remedy = "data_prepared_outside_a_DataLoader", INTO_A_DATASET
    return loss(*where, evidence.outside_share, seen, evidence.source, remedy, cause=name)


OVERLAP_EXCHANGE = Remedy(
    "overlap_exchange",
    "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch.",
)


@cause(LOSS, "exposed_collectives")
def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace).

    Cause "exposed_collectives". It costs the share of the time in which nothing else runs.
    """
    lost = evidence.communication_share
    if not lost:
        return None
    seen, remedy = "of the time only collectives run, hidden behind no compute", OVERLAP_EXCHANGE
    ranks = evidence.known("ranks")
    late = ranks and ranks.straggler
    if late is not None:
        seen += f"; {ranks.headline}"
        look = f"Look into the trace of rank {late} first: the others wait for it."
        remedy = Remedy("look_into_the_late_trace", look)
    by = evidence.source
    return loss("communication", "symptoms/ranks.md", lost, seen, by, remedy, rank=late)


# -- the device computes ---------------------------------------------------------------------------

BF16 = Remedy(
    "bf16",
    "Set precision='bf16' and compare the losses.",
    {"precision": "bf16"},
)


@cause(LOSS, "FP32")
def full_precision(evidence: Evidence) -> Finding | None:
    """The heavy math runs in FP32: in BF16 this run's own step was faster. Cause "FP32".

    It costs what the same step, tried in BF16 after the run, saved.
    """
    speedup = evidence.xray.get("bf16_speedup") or 0.0
    if speedup <= 1:
        return None
    lost = (1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    by = "measured on this run's own step"
    return loss("precision", "symptoms/precision.md", lost, seen, by, BF16)


@cause(LOSS, "no_Tensor_Cores")
def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not, where BF16 was not tried: "no_Tensor_Cores".

    It costs HALF_SAVED of the time of these kernels.
    """
    kernels, formats = evidence.kernels, evidence.known("formats")
    could = (kernels.tensor_core_eligible_share or 0.0) - (kernels.tensor_core_share or 0.0)
    if evaluate(full_precision, evidence) or formats == ():
        return None
    lost = max(0.0, could) * limits.HALF_SAVED * evidence.compute_share
    seen = "of the time is the cost of operators that could use Tensor Cores, at twice the speed"
    sixteen_bits = Remedy(
        "sixteen_bits",
        "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; sizes "
        "in multiples of 8.",
        {"precision": formats[0]} if formats else {},
    )
    return loss("precision", "symptoms/precision.md", lost, seen, "profiler", sixteen_bits)


@cause(LOSS, "elementwise_chains")
def elementwise(evidence: Evidence) -> Finding:
    """Elementwise operators, each of which reads and writes its data: "elementwise_chains".

    It costs what one fused pass over each chain would save.
    """
    lost = evidence.in_xray("fusible_us") * evidence.compute_share
    seen = "of the time goes to passes over memory that one fused pass would save"
    page, remedies = "symptoms/busy-device.md", larger_kernels(evidence)
    return loss("memory_bandwidth", page, lost, seen, "x-ray", *remedies)


PAD_LESS = Remedy(
    "pad_less",
    "Batch sequences of a length together, pad to the longest of a batch, or pack several in a "
    "row. Where the model leaves padding out, as with pack_padded_sequence, it costs nothing.",
)


@cause(LOSS, "padding")
def padding(evidence: Evidence) -> Finding:
    """Batches of text hold filler tokens, on which the device computes for nothing: "padding".

    It costs at most the share of the tokens that are filler, of the compute.
    """
    filler = evidence.padding
    lost = filler * evidence.compute_share
    seen = f"of the time, at most, is spent on padding, {percent(filler)} of the tokens"
    by = f"lengths, {evidence.source}"
    return loss("compute", "symptoms/padding.md", lost, seen, by, PAD_LESS)


COOLER = Remedy(
    "cooler",
    "Check its cooling (airflow, dust, a hot card beside it), or lower its power limit.",
)


@cause(WARNING, "throttle")
def throttled(evidence: Evidence) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be. Cause "throttle".

    It is found where HELD_DOWN of the readings or more show it. What it costs is not known.
    """
    if evidence.heat < limits.HELD_DOWN:
        return None
    seen = f"Heat or a power brake holds the clock down in {evidence.heat:.0%} of the readings "
    seen += "(NVML's clock reasons)."
    return Finding("compute", "symptoms/neighbour.md", evidence=seen, remedies=(COOLER,))


SINGLE_PRECISION = Remedy(
    "single_precision",
    "Train in float32, and compare the metric. NumPy's arrays are float64 unless told otherwise, "
    "and torch.from_numpy keeps that. What it brings is unknown: measure it with a run before and "
    "after.",
    code="# model = model.float()  # in place of double()\n"
    "# and each batch, better once in the dataset: batch.float()\n",
)


@cause(WARNING, "float64")
def double_precision(evidence: Evidence) -> Finding | None:
    """A watched loop trains weights of 64 bits, as NumPy's arrays have by default: "float64".

    It is found where the device computes for BUSY of the time. What it costs is not known.
    """
    busy = evidence.compute_share
    if evidence.weights_dtype != "float64" or busy < limits.BUSY:
        return None
    seen = f"{busy:.0%} of the time the device computes, and the weights are float64."
    remedies = (SINGLE_PRECISION,)
    return Finding("precision", "symptoms/precision.md", evidence=seen, remedies=remedies)


@cause(WARNING, "low_MFU")
def low_mfu(evidence: Evidence) -> Finding | None:
    """A busy device does little of what it could: cause "low_MFU".

    It is found where the device is busy for BUSY of the time, and its MFU is less than LOW_MFU of
    that.
    """
    busy = evidence.compute_share
    if busy < limits.BUSY or evidence.mfu >= limits.LOW_MFU * busy:
        return None
    seen = f"{busy:.0%} of the time busy, with an MFU of {percent(evidence.mfu)} "
    seen += f"(of {evidence.peak})."
    return Finding("compute", "symptoms/busy-device.md", evidence=seen, advice=LOOK_INSIDE)


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
    page, name = "symptoms/busy-device.md", "the_device_is_the_limit"
    return Finding("compute", page, name, evidence=seen, advice=advice)
