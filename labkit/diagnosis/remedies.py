"""Remedies as text and as data, side by side: what a finding says to change, a program can do.

A change is {knob: value}: of a `Pipeline`, or of the reader's own loader and step.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from labkit.diagnosis import thresholds as limits
from labkit.results.script import changed_lines

SAME = "the same losses"
# knob: (how dear it is, for choosing among remedies; what it costs; what must be checked)
PRICES = {
    "num_workers": (1, "a process with its memory for each worker, and their start", SAME),
    "prefetch_factor": (1, "memory for the batches kept ready", SAME),
    "persistent_workers": (1, "the workers' memory between epochs", SAME),
    "pin_memory": (1, "locked host memory for the batches kept ready", SAME),
    "non_blocking": (1, "nothing, with pin_memory", SAME),
    "prefetch_to_device": (1, "device memory for one more batch", SAME),
    "fused_optimizer": (1, "nothing", SAME),
    "channels_last": (1, "one conversion of the weights", "losses to rounding"),
    "batching": (2, "sequences of a batch are alike in length, or share its rows", "the metric"),
    "compile": (2, "compiling at the start, and again for each new shape", "losses to rounding"),
    "precision": (2, "accuracy: fewer digits", "losses within 16-bit rounding, and the metric"),
    "batch_size": (3, "memory, and another training: tune the learning rate", "the metric"),
}
ALL_BUSY = "All cores are busy, so more workers gain nothing."
NO_MORE = "Another number of workers is not expected to gain."
CHEAPER_ITEMS = "Do less work per item, or do it once before training."
AT_ONCE = (
    "fetch a batch at once. Index the tensors with a batch of indices; where dataset[[0, 1]] "
    "works, a BatchSampler as the DataLoader's sampler does so."
)
# Of the cores, at the most, while a GPU trains (facebookresearch/spdl f43e287,
# docs/source/optimization_guide/noisy_neighbour.rst)
QUIET_CPU = 0.4
IN_THE_LOOP = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
PAD_LESS = (
    "Batch sequences of a length together, pad to the longest of a batch, or pack several in a row."
)
UNPAD = (
    "Batch sequences of a length together (batching='by_length'), or put several into a row of the "
    "full context, each for itself (batching='packed').",
    ({"batching": "by_length"}, {"batching": "packed"}),
)
BF16 = ({"precision": "bf16"},)
FORMATS = {"bf16": "BF16", "fp16": "FP16 with a GradScaler"}
DEEPEST = 16  # a deeper queue than this takes memory and hides what is wrong
# On a CPU these make small models slower as often as faster: nothing to paste without a measurement
TRY_FIRST = {"fused_optimizer", "compile"}


@dataclass(frozen=True)
class Remedy:
    """A change that a program can make, and how many times the throughput it may bring."""

    changes: dict[str, Any]  # {knob: value}
    # Throughput over the run's, from half of the loss recovered to all of it (Amdahl): how far a
    # search may hope, and no promise
    gain: tuple[float, float]

    price = property(lambda r: max(PRICES[k][0] for k in r.changes), doc="1 (cheap) to 3 (dear).")
    cost = property(lambda r: "; ".join(PRICES[k][1] for k in r.changes), doc="In words.")
    check = property(lambda r: PRICES[max(r.changes, key=lambda k: PRICES[k][0])][2],
                     doc="What must hold before and after.")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as JSON types; what it should bring is its finding's `expected`."""
        return {name: getattr(self, name) for name in ("changes", "price", "cost", "check")}


def remedies(changes: Any, lost: float) -> tuple[Remedy, ...]:
    """Return remedies of a loss (0 to 1 of wall time); each change is {knob: value}."""
    gain = 1 / (1 - lost / 2), 1 / (1 - lost)
    return tuple(Remedy(change, gain) for change in changes)


def typed(finding: Any, facts: Any) -> Any:
    """Return a finding with the code of its first remedy, in plain PyTorch or for a Trainer.

    A finding without a code keeps its words alone: no remedy, or on a CPU one that may as well make
    it slower, which nothing has measured.
    """
    if facts.trainer:
        finding = replace(finding, change=_for_trainer(finding.change))
    if AT_ONCE in finding.change and not finding.remedies and facts.code is not None:
        return replace(finding, code=facts.code.batches_at_once())
    for remedy in finding.remedies[:1]:
        if facts.kind == "cpu" and TRY_FIRST & remedy.changes.keys() and not finding.expected:
            return finding
        if facts.code is not None:
            lines = facts.code.trainer_lines if facts.trainer else facts.code.lines
            return replace(finding, code=lines(remedy.changes))
        return replace(finding, code=changed_lines(facts.knobs, facts.knobs | remedy.changes))
    return finding


def _for_trainer(text: str) -> str:
    """Return advice with the loader's settings under their names in TrainingArguments."""
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    return re.sub(rf"\b({'|'.join(names)})\b", r"dataloader_\1", text)


def too_many(workers: int, cores: int | None) -> str:
    """Say why PyTorch warns of so many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above your {cores} cores, but workers waiting on I/O use none"


def feed(
    facts: Any, stalls: bool, cause: str = "", first: str = ""
) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do about waiting for data: in words, and as changes.

    `first` is what helps against the `cause`, where that is known.
    """
    workers = facts.knobs.get("num_workers")
    made = facts.wait_us or math.inf  # µs a batch, on a core of its own
    if workers:
        made = facts.lines and facts.lines.made_us or math.inf
        made *= min(1, (facts.cores or math.inf) / (workers + 1))
    if made < limits.HANDOFF_US and facts.has_workers is None:
        text, changes = _in_the_loop(facts.knobs, made)
        first = "" if cause in ("item", "collate") else first  # no item is fetched by itself
    else:
        text, changes = _of_trace(facts) if facts.from_trace else _workers(facts, stalls)
        text += "" if changes or first else f" {CHEAPER_ITEMS}"
    return f"{first} {text}".strip(), changes


def _in_the_loop(knobs: dict[str, Any], made_us: float) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do where a batch is made as fast as a worker hands it over."""
    workers, at_once = knobs.get("num_workers"), AT_ONCE
    if knobs.get("batch_size", 1) is None:  # that is done, as far as a loader goes
        at_once = "use larger batches, or index the tensors without a DataLoader."
    where = "Make batches in the loop (num_workers=0). " if workers else ""
    text = f"{where}{made_us / 1e3:.1f} ms a batch is no more than handing one over from a worker "
    return f"{text}takes, so workers gain nothing: {at_once}", [IN_THE_LOOP] if workers else []


def _of_trace(facts: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do about the loader of a trace, of which little more is known."""
    if facts.has_workers:
        text = "The loader's workers do not keep up: raise num_workers while CPU cores are idle."
        return f"{text} {CHEAPER_ITEMS}", []
    if facts.workers is None:
        return "Give the DataLoader workers, and a leaner dataset.", []
    count = facts.workers.num_workers
    return f"Give the DataLoader workers: num_workers={count} is enough.", [{"num_workers": count}]


def _workers(facts: Any, stalls: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return how many workers there should be, by `recommend_workers`, or how deep their queue."""
    knobs, cores = facts.knobs, facts.cores or 0
    now, ready = knobs.get("num_workers") or 0, knobs.get("prefetch_factor") or 2
    if now and stalls:
        queue = f"a queue of {now * ready} batches does not ride out the stalls."
        deeper = facts.prefetch[0] if facts.prefetch else None
        if deeper is None and facts.workers is None and 4 * ready <= DEEPEST:
            deeper = 4 * ready
        if deeper is not None:
            text = f"Raise prefetch_factor to {deeper}: {queue}"
            return text, [{"prefetch_factor": deeper}]
    if facts.workers is None:
        if knobs.get("num_workers") is None:
            return "Prepare batches in other processes: a DataLoader with workers.", []
        return "Try other numbers of workers.", []
    count = facts.workers.num_workers
    if count == now:
        busy = cores and (facts.own_cores or 0.0) >= limits.CORES_BUSY * cores
        return ALL_BUSY if busy else NO_MORE, []
    if not count:
        text = (
            "Make batches in the loop (num_workers=0): handing them over costs more than it saves."
        )
        return text, [IN_THE_LOOP]
    if count < now:
        return f"Use fewer workers: num_workers={count}.", [{"num_workers": count}]
    text = "Raise num_workers to" if now else "Prepare batches in other processes: num_workers="
    text += f" {count}" if now else f"{count}"
    return f"{text}{too_many(count, cores)}.", [{"num_workers": count}]


def copy(facts: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do about copies to the device, as `feed` does."""
    text = "Send one contiguous block per batch"
    if facts.kind != "gpu":
        return f"{text}.", []
    if not facts.knobs.get("pin_memory"):
        more = "from pinned memory: pin_memory=True, then non_blocking=True."
        return f"{text} {more}", [{"pin_memory": True, "non_blocking": True}]
    under = "copy the next batch under the compute of this one (prefetch_to_device=True)."
    return f"{text} and {under}", _unset(facts, {"prefetch_to_device": True})


def less_to_launch(facts: Any) -> str:
    """Say how to launch fewer and larger kernels; inference has no optimizer to fuse."""
    compiled = "torch.compile"
    if facts.kind == "gpu":
        compiled += " (reduce-overhead uses CUDA graphs)"
    fused = "fused_optimizer=True, " if facts.trains else ""
    return (
        f"Launch fewer and larger kernels: a larger batch, {compiled}, {fused}no .item() in the "
        "step."
    )


def quieter(facts: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do about cores that are full while a GPU waits for launches."""
    own, others = facts.own_cores or 0.0, facts.foreign_cores or 0.0
    advice = f"SPDL's authors advise at most {QUIET_CPU:.0%} of the CPU while a GPU trains"
    if others > own:
        return f"Stop the other programs, or give this one cores of its own: {advice}.", []
    now, fewer = facts.knobs.get("num_workers"), facts.workers and facts.workers.num_workers
    text = f"Use fewer workers, or cheaper items: {advice}."
    if not now or fewer is None or fewer >= now:
        return text, []
    return f"{text} num_workers={fewer} should do.", [{"num_workers": fewer}]


def more_per_call(facts: Any) -> str:
    """Say how to give the device more work per call."""
    fused = "fused_optimizer=True, " if facts.trains else ""
    return (
        "Give the device more work per call: a larger batch, batched instead of looped "
        f"operations, torch.compile, {fused}no Python loops in forward."
    )


def fusing(facts: Any) -> str:
    """Say how to fuse elementwise operators."""
    fused = "fused_optimizer=True, " if facts.trains else ""
    return f"Fuse them: torch.compile, {fused}a fused kernel."


def fewer_launches(facts: Any) -> list[dict[str, Any]]:
    """Return the changes that launch fewer kernels."""
    mode = "reduce-overhead" if facts.kind == "gpu" else "default"
    size = facts.knobs.get("batch_size")
    more = [{"batch_size": 4 * size}, {"batch_size": 2 * size}] if size else []
    return [*fuse(facts, mode), *more]


def fuse(facts: Any, mode: str = "default") -> list[dict[str, Any]]:
    """Return the changes that fuse operators."""
    changes = [{"fused_optimizer": True}] if facts.trains else []
    return _unset(facts, *changes, {"compile": mode})


def sixteen_bits(facts: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the 16-bit format to use: what the card's Tensor Cores have, BF16 before FP16."""
    if facts.formats is None:
        text = "Use 16-bit autocast: BF16 on Ampere and later cards, FP16 with a GradScaler before"
        return f"{text}; sizes in multiples of 8.", []
    best = facts.formats[0]
    lacks = "" if best == "bf16" else " (this card has no BF16)"
    text = f"Use autocast to {FORMATS[best]}{lacks}, sizes in multiples of 8."
    return text, [{"precision": best}]


def _unset(facts: Any, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [change for change in changes if not any(facts.knobs.get(k) for k in change)]
