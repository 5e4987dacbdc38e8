"""Remedies as text and as data, side by side: what a finding says to change, a program can do.

A change is {knob: value}: of a `Pipeline`, or of the reader's own loader and step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from labkit.analysis import thresholds as limits
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
FEWER_LAUNCHES = (
    "Launch fewer and larger kernels: a larger batch, torch.compile (reduce-overhead uses CUDA "
    "graphs), fused_optimizer=True, no .item() in the step."
)
START = 4  # workers, where there were none; lk.tune measures how many are best
ALL_BUSY = "All cores are busy, so more workers gain nothing."
CHEAPER_ITEMS = "Do less work per item, or do it once before training."
AT_ONCE = (
    "fetch a batch at once. Index the tensors with a batch of indices, or use DataLoader(dataset, "
    "batch_size=None, sampler=BatchSampler(RandomSampler(dataset), 64, drop_last=False))."
)
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
FUSE = "Fuse them: torch.compile, fused_optimizer=True, a fused kernel."
MORE_PER_CALL = (
    "Give the device more work per call: a larger batch, batched instead of looped "
    "operations, torch.compile, fused_optimizer=True, no Python loops in forward."
)


@dataclass(frozen=True)
class Remedy:
    """A change that a program can make, and how many times the throughput it may bring."""

    changes: dict[str, Any]  # {knob: value}
    gain: tuple[float, float]  # expected, from half of the loss recovered to all (Amdahl)

    price = property(lambda r: max(PRICES[k][0] for k in r.changes), doc="1 (cheap) to 3 (dear).")
    cost = property(lambda r: "; ".join(PRICES[k][1] for k in r.changes), doc="In words.")
    check = property(lambda r: PRICES[max(r.changes, key=lambda k: PRICES[k][0])][2],
                     doc="What must hold before and after.")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as JSON types."""
        names = ("changes", "price", "cost", "check")
        gain = [round(part, 3) for part in self.gain]
        return {name: getattr(self, name) for name in names} | {"gain": gain}


def remedies(changes: Any, lost: float, most: float = 0.0) -> tuple[Remedy, ...]:
    """Return remedies of a loss (0 to 1 of wall time); each change is {knob: value}.

    `most`, where it is known, is what they can gain at most.
    """
    gain = tuple(min(part, most or part) for part in (1 / (1 - lost / 2), 1 / (1 - lost)))
    return tuple(Remedy(change, gain) for change in changes)


def typed(finding: Any, knobs: dict[str, Any]) -> Any:
    """Return a finding with the PyTorch of its first remedy, where the loop has these `knobs`."""
    for remedy in finding.remedies[:1]:
        known = {"batch_size": None, **knobs, "dataset": None}
        return replace(finding, code=changed_lines(known, known | remedy.changes))
    return finding


def too_many(workers: int, cores: int | None) -> str:
    """Say why PyTorch warns of so many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above {cores}, the cores here, but workers that wait take none"


def feed(
    facts: Any, stalls: bool, cause: str = "", first: str = ""
) -> tuple[str, list[dict[str, Any]], float]:
    """Return what to do about waiting for data: in words, as changes, and their gain at most.

    `first` is what helps against the `cause`, where that is known. A gain of 0 is unbounded.
    """
    most, workers = 0.0, facts.knobs.get("num_workers")
    made = facts.wait_us or math.inf  # µs a batch, on a core of its own
    if workers:
        made = facts.lines and facts.lines.made_us or math.inf
        made *= min(1, (facts.cores or math.inf) / (workers + 1))
    if made < limits.HANDOFF_US:
        text, changes = _in_the_loop(facts.knobs, made)
        first = "" if cause in ("item", "collate") else first  # no item is fetched by itself
    else:
        most = 0.0 if workers else _most_of_workers(facts)
        text, changes = _workers(facts, stalls) if workers else _first_workers(facts, most)
        text += "" if changes or first else f" {CHEAPER_ITEMS}"
    return f"{first} {text}".lstrip(), changes, most


def _in_the_loop(knobs: dict[str, Any], made_us: float) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do where a batch is made as fast as a worker hands it over."""
    workers, at_once = knobs.get("num_workers"), AT_ONCE
    if knobs.get("batch_size", 1) is None:  # that is done, as far as a loader goes
        at_once = "use larger batches, or index the tensors without a DataLoader."
    where = "Make batches in the loop (num_workers=0). " if workers else ""
    text = f"{where}{made_us / 1e3:.1f} ms a batch is no more than handing one over from a worker "
    return f"{text}takes, so workers gain nothing: {at_once}", [IN_THE_LOOP] if workers else []


def _first_workers(facts: Any, most: float) -> tuple[str, list[dict[str, Any]]]:
    """Return how many workers to begin with, which gain `most` where items share the cores."""
    cores, threads, wait = facts.cores or 0, facts.threads or 0, facts.shares["wait"]
    if 0 < most < 1.05:  # no more than noise
        return ALL_BUSY, []
    # Loading takes its share of the cores of a model on the CPU; a GPU leaves all of them to it
    count = max(1, min(START, round(cores * (wait if threads else 1)))) if most else START
    if most and threads >= cores > 1:
        return (
            f"The items are computed on the {cores} cores that the model's {threads} threads use: "
            f"workers need some for themselves (num_workers={count} with "
            f"torch.set_num_threads({max(1, cores - count)})) and gain {most:.1f}x at most."
        ), []
    start = f"num_workers={count} to start with{too_many(count, cores)}"
    if 0 < most * (1 - wait) < 0.9:  # the cores are the limit, not the waiting
        start += f"; items that compute gain {most:.1f}x at most on {cores} cores"
    if facts.knobs.get("num_workers") is None:
        text = f"Give the DataLoader workers ({start}) and a leaner dataset."
    else:
        text = f"Prepare batches in other processes: {start}."
    return text, [{"num_workers": count}]


def _workers(facts: Any, stalls: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return what to do with the workers there are."""
    knobs, cores = facts.knobs, facts.cores or 0
    workers, ready = knobs["num_workers"], knobs.get("prefetch_factor") or 2
    if stalls:
        queue = f"a queue of {workers * ready} batches does not ride out the stalls."
        return f"Raise prefetch_factor: {queue}", [{"prefetch_factor": 4 * ready}]
    if cores and workers > 2 * cores and not knobs.get("io_ms"):
        text = f"{workers} workers share {cores} cores: try {cores} (num_workers={cores})"
        return f"{text}, and do less work per item.", [{"num_workers": cores}]
    if cores and (facts.own_cores or 0.0) >= limits.CORES_BUSY * cores:
        return ALL_BUSY, []
    text = "Raise num_workers; where that gains nothing, do less work per item or preprocess."
    return text, [{"num_workers": 2 * workers}]


def _most_of_workers(facts: Any) -> float:
    """Return what workers can gain at most, where items that compute share the cores; else 0."""
    lines, cores, wait = facts.lines, facts.cores or 0, facts.shares["wait"]
    if not cores or not lines or not lines.enough("waiting"):
        return 0.0
    kinds = lines.kinds("waiting")
    rests = sum(kinds.get(kind, 0.0) for kind in ("io", "wait"))
    if rests > limits.MOSTLY * sum(kinds.values()):
        return 0.0
    # Workers can use the cores that stayed idle, and hide no more than the waiting
    used = wait if facts.kind == "gpu" else facts.own_cores or 1.0
    return min(max(1.0, cores / max(used, 0.02)), 1 / max(1 - wait, 0.02))


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


def fewer_launches(facts: Any) -> list[dict[str, Any]]:
    """Return the changes of FEWER_LAUNCHES and MORE_PER_CALL."""
    mode = "reduce-overhead" if facts.kind == "gpu" else "default"
    size = facts.knobs.get("batch_size")
    more = [{"batch_size": 4 * size}, {"batch_size": 2 * size}] if size else []
    return [*_unset(facts, {"fused_optimizer": True}, {"compile": mode}), *more]


def fuse(facts: Any) -> list[dict[str, Any]]:
    """Return the changes of FUSE."""
    return _unset(facts, {"fused_optimizer": True}, {"compile": "default"})


def _unset(facts: Any, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [change for change in changes if not any(facts.knobs.get(k) for k in change)]
