"""Remedies for what the device does and waits for: launches, formats, collectives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.remedies import ANOTHER_TRAINING, ROUNDED, Fit, Remedy
from labkit.spec import KNOBS

FORMATS = {"bf16": "BF16", "fp16": "FP16 with a GradScaler"}
# Of the cores, at the most, while a GPU trains (facebookresearch/spdl f43e287,
# docs/source/optimization_guide/noisy_neighbour.rst)
QUIET = "SPDL's authors advise at most 40% of the CPU while a GPU trains"

# -- launches --------------------------------------------------------------------------------------


def may_compile(evidence: Evidence) -> bool:
    """Fit a model that is not compiled, where it can be: not in a process with several cards.

    There a model is nn.DataParallel's: torch.compile does not reach its threads
    (pytorch/pytorch#94636), and a Trainer does not call it (huggingface/transformers#25152).
    """
    code = evidence.code or LoopCode()
    is_compiled = evidence.knobs.get("compile") or code.is_compiled
    return evidence.compiles and not is_compiled and code.cards == 1


def compiled(evidence: Evidence) -> Fit | None:
    """Fit a model that may be compiled: with CUDA graphs where a GPU's steps are alike.

    A graph's next replay overwrites the gradients that accumulation has to keep: PyTorch raises
    (pytorch/pytorch#169545). And each size of a batch has a graph of its own to be recorded.
    """
    if not may_compile(evidence):
        return None
    alike = evidence.batches_an_update == 1 and evidence.batch.sizes <= limits.FEW_SIZES
    has_graphs = evidence.kind == "gpu" and alike
    return Fit({"compile": "reduce-overhead" if has_graphs else "default"})


def several_cards(evidence: Evidence) -> Fit | None:
    """Fit a process that trains on several cards."""
    cards = evidence.code.cards if evidence.code else 1
    return Fit(words={"cards": cards}) if cards > 1 else None


def may_be_fused(evidence: Evidence) -> bool:
    """Fit an optimizer that could be fused; of a Trainer, whose default is, only one known to."""
    could = evidence.may_fuse is True or (evidence.may_fuse is None and not evidence.trainer)
    return evidence.trains and could


MOST_A_BATCH = int(KNOBS["batch_size"].high or 0)


def larger_batch(times: int, evidence: Evidence) -> Fit | None:
    """Fit a loop whose batch size is known."""
    size = int(evidence.knobs.get("batch_size") or 0)
    allowed = 0 < times * size <= MOST_A_BATCH and gathered(evidence) is None
    return Fit({"batch_size": times * size}) if allowed else None


MORE_PER_CALL = Remedy(
    "more_per_call",
    "Give the device more work per call: a larger batch, batched operations instead of Python "
    "loops in forward, or torch.compile.",
    "launches",
    on="cpu",
)
COMPILE = Remedy(
    "compile",
    "Launch fewer and larger kernels: torch.compile (reduce-overhead adds CUDA graphs, but breaks "
    "gradient accumulation and records each batch size anew), a larger batch, no .item() in the "
    "step.",
    "launches",
    compiled,
    cost="compiling at the start, and again for each new shape",
    check=ROUNDED,
    price=2,
)
PROCESS_PER_CARD = Remedy(
    "process_per_card",
    "Give each of the $cards cards a process of its own, with torchrun or accelerate launch (in a "
    "restarted notebook accelerate's notebook_launcher): here one process drives them all "
    "(nn.DataParallel), and torch.compile does not reach its threads.",
    "processes",
    several_cards,
    on="gpu",
    cost="another start; outside a Trainer also DistributedDataParallel and DistributedSampler",
    check="the same losses with as large a batch over all cards, in less time a step",
    price=2,
)
FUSED_OPTIMIZER = Remedy(
    "fused_optimizer",
    "Use a fused optimizer (fused_optimizer=True).",
    "launches",
    may_be_fused,
    {"fused_optimizer": True},
)
LARGER_BATCH = Remedy(
    "larger_batch",
    "Use a larger batch: batch_size=$batch_size.",
    "batch",
    partial(larger_batch, 4),
    cost="memory, and a different training: tune the learning rate",
    check=ANOTHER_TRAINING,
    price=3,
)
TWICE_THE_BATCH = replace(LARGER_BATCH, fits=partial(larger_batch, 2))
MORE_PER_LAUNCH = Remedy(
    "more_per_launch",
    "Give each kernel more to do: a larger batch, or longer sequences.",
    "launches",
    lambda evidence: not evidence.knobs.get("batch_size"),
    on="gpu",
    cost="memory",
    check=ANOTHER_TRAINING,
    price=3,
)


def gathered(evidence: Evidence) -> Fit | None:
    """Fit a loop that gathers the gradients of small batches on a card with room for larger ones.

    The card's memory, with what others hold of it, is taken to grow with the batch.
    """
    batches = evidence.batches_an_update or 1
    size = int(evidence.knobs.get("batch_size") or 0)
    held = evidence.card.held_share
    own_batches = evidence.code is not None and "batch_sampler" in (evidence.code.arguments or {})
    if batches < 2 or size < 2 or not held or own_batches:  # one item a batch may not stack
        return None
    most = min(limits.ROOM / held, MOST_A_BATCH / size)
    times = max(n for n in range(1, batches + 1) if batches % n == 0 and (n == 1 or n <= most))
    if times == 1:
        return None
    left = batches // times
    larger = times * size
    settings = {"batch_size": larger, "accumulation_steps": left}
    by_hand = ""
    if evidence.code is not None and not evidence.trainer:  # no knob: a line of the user's loop
        del settings["accumulation_steps"]
        after = "each batch" if left == 1 else f"{left} batches"
        by_hand = f"# an update after {after}, its loss divided by {left}, not {batches}\n"
    words = {"batches": batches, "times": times, "size": size, "left": left, "larger": larger}
    return Fit(settings, {**words, "by_hand": by_hand})


LARGER_AND_FEWER = Remedy(
    "larger_and_fewer",
    "An update gathers $batches batches of $size: make it $left of $larger, for which this card "
    "should have room. Forward and backward pass then launch 1/$times of the kernels. Of a loss "
    "that is a mean over the batch it is the same update, batch norm aside.",
    "batch",
    gathered,
    on="gpu",
    code="$by_hand",
    cost="memory",
    check=ROUNDED,
)
FEWER_LAUNCHES = (
    MORE_PER_CALL,
    LARGER_AND_FEWER,
    COMPILE,
    PROCESS_PER_CARD,
    FUSED_OPTIMIZER,
    LARGER_BATCH,
    TWICE_THE_BATCH,
    MORE_PER_LAUNCH,
)


def fewer_workers(evidence: Evidence) -> Fit:
    """Set how many workers should do, where that is known."""
    fewer = evidence.advised
    if not evidence.num_workers or fewer is None or fewer >= evidence.num_workers:
        return Fit(words={"how": ""})
    return Fit({"num_workers": fewer}, {"how": f" num_workers={fewer} should do."})


QUIETER = Remedy(
    "fewer_workers_or_cheaper_items",
    f"Use fewer workers, or cheaper items: {QUIET}.$how",
    "workers",
    fewer_workers,
)
ALONE = Remedy(
    "stop_other_programs",
    f"Stop the other programs, or give this one cores of its own: {QUIET}.",
    "workers",
)

# -- formats and memory traffic --------------------------------------------------------------------


def sixteen_bits(evidence: Evidence) -> Fit | None:
    """Fit a card whose formats are known: BF16 before FP16."""
    if not evidence.formats:
        return None
    best = evidence.formats[0]
    lacks = "" if best == "bf16" else " (this card has no BF16)"
    return Fit({"precision": best}, {"format": FORMATS[best] + lacks})


def formats_left(evidence: Evidence) -> Fit:
    """Name other number formats where a card has them and the weights are float32."""
    lacks = not evidence.formats or evidence.weights_dtype not in (None, "float32")
    which = "autocast" if evidence.formats == ("fp16",) else "TF32 or autocast"  # Volta, Turing
    told = f"{which} to 16 bits where it computes in float32 (notebook 05), "
    return Fit(words={"formats": "" if lacks else told})


def single_precision(evidence: Evidence) -> Fit:
    """Name the model, and add what converts a batch where it is float64."""
    converted = "# and each batch, better once in the dataset: batch.float()\n"
    batch = converted if evidence.batch.dtype == "float64" else ""
    return Fit(words={"batch": batch, "model": (evidence.code or LoopCode()).model or "model"})


SINGLE_PRECISION = Remedy(
    "single_precision",
    "Train in float32, and compare the metric. NumPy's arrays are float64 unless told otherwise, "
    "and torch.from_numpy keeps that. What it brings is unknown: measure it with a run before and "
    "after.",
    "formats",
    single_precision,
    code="$model = $model.float()  # in place of double()\n$batch",
    cost="accuracy: 7 digits in place of 16",
    check="the metric, within float32's rounding",
)
BF16 = Remedy(
    "bf16",
    "Set precision='bf16' and compare the losses.",
    "formats",
    lambda evidence: Fit({"precision": "bf16"}),
    cost="accuracy: fewer digits",
    check="losses within 16-bit rounding, and the metric",
    price=2,
)
SIXTEEN_BITS = Remedy(
    "sixteen_bits",
    "Use autocast to $format, sizes in multiples of 8.",
    "formats",
    sixteen_bits,
    cost="accuracy: fewer digits",
    check="losses within 16-bit rounding, and the metric",
    price=2,
)
SOME_16_BITS = Remedy(
    "some_16_bits",
    "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before; sizes in "
    "multiples of 8.",
    "formats",
)
ALIGNED = Remedy(
    "multiples_of_8",
    "Round layers, vocabulary and batch to multiples of 8, better 64.",
    "formats",
    cost="a few more weights",
    check=ANOTHER_TRAINING,
)
FUSE = Remedy(
    "fuse",
    "Fuse elementwise operators: torch.compile, or a fused kernel.",
    "fusion",
    may_compile,
    {"compile": "default"},
    cost="compiling at the start, and again for each new shape",
    check=ROUNDED,
    price=2,
)
FUSED_UPDATE = replace(FUSED_OPTIMIZER, lesson="fusion")
PAD_LESS = Remedy(
    "pad_less",
    "Batch sequences of a length together, pad to the longest of a batch, or pack several in a "
    "row. Where the model leaves padding out, as with pack_padded_sequence, it costs nothing.",
    "padding",
)

# -- the machine, and where nothing is left --------------------------------------------------------

COOLER = Remedy(
    "cooler",
    "Check its cooling (airflow, dust, a hot card beside it), or lower its power limit.",
)
NOTHING_LEFT = Remedy(
    "larger_batch_or_smaller_model",
    "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook 04 "
    "Batch sizing), a smaller model or a faster device.",
)


def may_move(evidence: Evidence) -> Fit | None:
    """Fit a model on the CPU beside a GPU, with lines for a loop that is not a Trainer's."""
    if evidence.spare_card is None or evidence.weights_dtype == "float64":  # Apple's GPUs lack it
        return None
    words = {"card": evidence.spare_card, "lines": "", "how": BY_A_TRAINER}
    if evidence.trainer:
        return Fit(words=words)
    model = (evidence.code or LoopCode()).model or "model"
    return Fit(words=words | {"how": BY_HAND, "lines": MOVED.format(model)})


BY_HAND = (
    "move the model before its optimizer is made, and each batch in the loop. Accelerate and "
    "Lightning do both themselves, without cpu=True and with accelerator='auto'"
)
BY_A_TRAINER = "take use_cpu=True (or ACCELERATE_USE_CPU) out, and the Trainer does it"
MOVED = """device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
{0} = {0}.to(device)  # before the optimizer is made
# and in the loop, each tensor of a batch: x = x.to(device)
"""
USE_THE_CARD = Remedy(
    "use_the_card",
    "Train on the $card: $how. If torch sees no device, `labkit machine` says why. Many small "
    "operators can be slower there than on the CPU. What it brings is unknown: measure it with a "
    "run before and after.",
    fits=may_move,
    on="cpu",
    code="$lines",
    cost="none, where the card is free",
    check=ROUNDED,
)
PROFILE_FIRST = Remedy(
    "profile_the_operators",
    "A watched loop sees the waiting for data, the lines of its body and the cores, and finds no "
    "loss there. It does not see inside the operators: profile a few steps with torch.profiler. If "
    "they are small, compute more samples in one call: a larger batch (notebook 04 Batch sizing), "
    "all steps of a sequence at once. If they are large and well used, what is left is "
    "${formats}a smaller model or a faster device.",
    fits=formats_left,
)


LATE_TRACE = Remedy(
    "look_into_the_late_trace",
    "Look into the trace of rank $rank first: the others wait for it.",
    "ranks",
)
OVERLAP_EXCHANGE = Remedy(
    "overlap_exchange",
    "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch.",
    "exchange",
)
