"""The rules of the diagnosis: each looks at the facts for one cause of lost device time.

A rule returns what its cause costs, however little, with the evidence and the remedy; None where it
does not apply or cannot tell. `rank` decides which losses are worth a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Facts, deciding
from labkit.analysis.finding import Finding, loss

PAUSES = "pauses inside steps"
FEWER_LAUNCHES = (
    "Launch fewer and larger kernels: a larger batch, torch.compile (reduce-overhead uses CUDA "
    "graphs), no .item() in the step."
)
FUSE = "Fuse them: torch.compile, fused_optimizer=True, a fused kernel."
# Kernels that only move data: PyTorch's elementwise ones, and those of an optimizer that runs each
# of its operations over all parameters (foreach); a fused one does them in one pass
PASSES = re.compile(r"elementwise|multi_tensor_apply(?!.*fused)", re.I)
# CUTLASS ends a kernel's name in the alignment it was made for: 16-bit products of sizes in
# multiples of 8 run in `align8`
UNALIGNED = re.compile(r"(?:tensorop|wmma|[hs]?16816|[hs]1688|h884).*_align[12]\b")


Loss = tuple[float, str, str, str]  # share of wall time, what was seen, by what, what to change
RULES: list[tuple[str, str, Callable[[Facts], Loss | None]]] = []  # bottleneck, cause, rule


def rule(name: str, cause: str) -> Callable:
    """Register a function of the facts as the rule that finds `cause`, one of bottleneck `name`."""

    def register(find: Callable[[Facts], Loss | None]) -> Callable[[Facts], Loss | None]:
        RULES.append((name, cause, find))
        return find

    return register


# -- the loop and its host -----------------------------------------------------------------------


@rule("input", "waiting for data")
def waits_for_data(facts: Facts) -> Loss:
    """The loop asks for a batch that is not ready."""
    lost = facts.shares["wait"]
    seen = f"{lost:.0%} of the time is spent waiting for the next batch"
    stalls = facts.stalls > limits.STALLS and lost > 0.02
    if stalls:
        seen += f", {facts.stalls:.0%} of it in a tenth of the steps: stalls"
    return lost, seen, facts.source, _loader_advice(facts, stalls)


def _loader_advice(facts: Facts, stalls: bool) -> str:
    workers, cores = facts.knobs.get("num_workers"), facts.cores or 0
    if workers is None:
        return "Give the DataLoader workers (num_workers=4 to start with) and a leaner dataset."
    if workers == 0:
        return "Prepare batches in other processes: num_workers=4 to start with."
    if stalls:
        ready = workers * (facts.knobs.get("prefetch_factor") or 2)
        return f"Raise prefetch_factor: a queue of {ready} batches does not ride out the stalls."
    if cores and workers > 2 * cores and not facts.knobs.get("io_ms"):
        return f"{workers} workers share {cores} cores: try {cores}, and do less work per item."
    return "Raise num_workers; where that gains nothing, do less work per item or preprocess."


@rule("input", "workers take the device's cores")
def loader_takes_cores(facts: Facts) -> Loss | None:
    """The loader's workers run on the cores that the model needs (a CPU as the device)."""
    lost = facts.taken_by_workers
    if lost is None:
        return None
    return (
        lost,
        f"for {lost:.0%} of the time a loader worker had the core that the model's thread needed, "
        f"with {facts.knobs['num_workers']} workers on {facts.cores} cores",
        "thread CPU time against wall time",
        "Use fewer workers, or do less work per item: preprocess offline.",
    )


@rule("transfer", "copies")
def copies(facts: Facts) -> Loss:
    """The device waits while a batch is copied to it."""
    lost = facts.shares["copy"]
    change = "Send one contiguous block per batch"
    if facts.kind == "gpu" and facts.knobs.get("pin_memory"):
        change += " and copy the next batch under the compute of this one"
    elif facts.kind == "gpu":
        change += " from pinned memory: pin_memory=True, then non_blocking=True"
    seen = f"{lost:.0%} of the time the device waits for a copy"
    return lost, seen, facts.source, f"{change}."


@rule("launch", "host work in the loop")
def host_between_steps(facts: Facts) -> Loss:
    """The host does something else than feeding the device: logs, checkpoints, evaluates."""
    lost = facts.shares["other"] + facts.shares["launch"]
    return (
        lost,
        f"{lost:.0%} of the time the device waits while the host does something other than data "
        "and copies",
        facts.source,
        "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; "
        "where there is none, launch fewer and larger kernels.",
    )


@rule("launch", PAUSES)
def pauses(facts: Facts) -> Loss:
    """Single steps compute far longer than the others."""
    return (
        facts.pauses,
        f"{facts.pauses:.0%} of the time is lost to single steps that compute far longer than an "
        "ordinary one",
        facts.source,
        "Look for what runs now and then: garbage collection, recompiles, checkpoints.",
    )


# -- inside the compute --------------------------------------------------------------------------


@rule("launch", "Python and tiny operators")
def host_inside_compute(facts: Facts) -> Loss | None:
    """Python and the dispatch of tiny operators fill the compute (a CPU as the device)."""
    seen = facts.xray
    if facts.kind != "cpu" or not seen:
        return None
    # The profiler's own cost (1 to 2 µs an operator) is in it; the threshold was calibrated so
    inside = min(1.0, (seen["gap_us"] + seen["tiny_us"]) / max(seen["window_us"], 1e-9))
    lost, fixed = inside * facts.shares["compute"], seen.get("fixed_share")
    also = "" if fixed is None else f"; {fixed:.0%} of it does not grow with the batch"
    return (
        lost,
        f"{lost:.0%} of the time, inside the compute, goes to Python and to dispatching "
        f"{seen['tiny_ops']} operators of under 10 µs per step",
        f"x-ray of {seen['steps']} steps{also}",
        "Give the device more work per call: a larger batch, batched instead of looped operations, "
        "torch.compile, no Python loops in forward.",
    )


@rule("launch", "gaps between kernels")
def gaps_between_kernels(facts: Facts) -> Loss | None:
    """The device idles between the kernels of a step (a GPU; its own events against the x-ray)."""
    if facts.kind != "gpu" or facts.trace is None or facts.from_trace:
        return None
    ran = facts.trace.kernel_us
    lost = max(0.0, 1 - ran / facts.compute_us) * facts.shares["compute"]
    return (
        lost,
        f"{lost:.0%} of the time no kernel runs inside the step's compute: kernels take "
        f"{ran / 1e3:.1f} ms of {facts.compute_us / 1e3:.1f} ms",
        "x-ray against events",
        FEWER_LAUNCHES,
    )


@rule("launch", "gaps or small kernels")
def idles_while_busy(facts: Facts) -> Loss | None:
    """The device hardly works in the time that its events call busy (a GPU without an x-ray)."""
    witness = deciding(facts.witnesses)
    if witness is None or witness.works:
        return None
    return (
        (1 - witness.share) * facts.shares["compute"],
        f"the device is busy {facts.shares['compute']:.0%} of the time by its events, but "
        f"{witness.said}: gaps between kernels, or kernels too small for it",
        facts.source,
        f"{FEWER_LAUNCHES} An x-ray (xray=True) tells gaps from small kernels.",
    )


@rule("precision", "FP32")
def slow_format(facts: Facts) -> Loss | None:
    """The heavy math runs in FP32 where BF16 was measured to be faster on this device."""
    speedup = facts.xray.get("bf16_speedup")
    if not speedup or speedup < 0:
        return None
    lost = max(0.0, 1 - 1 / speedup) * facts.shares["compute"]
    return (
        lost,
        f"FP32 costs {lost:.0%} of the time: in BF16 the same compute took 1/{speedup:.2f} as long",
        "measured on this run's own step",
        "Set precision='bf16' and compare the losses.",
    )


@rule("precision", "no Tensor Cores")
def no_tensor_cores(facts: Facts) -> Loss | None:
    """Kernels that could use Tensor Cores do not (told by their names in a profiler trace)."""
    if facts.trace is None or facts.trace.tensor_core_eligible_share is None:
        return None
    if facts.xray.get("bf16_speedup") is not None:
        return None  # measured: better than told by names
    could, uses = facts.trace.tensor_core_eligible_share, facts.trace.tensor_core_share
    lost = _on_tensor_cores(max(0.0, could - uses)) * facts.shares["compute"]
    return (
        lost,
        f"{could:.0%} of kernel time is in operators that can use Tensor Cores, {uses:.0%} does: "
        f"at {limits.TENSOR_CORE_GAIN:g}x, the low end of published gains, that costs {lost:.0%} "
        "of the time",
        facts.looked_at,
        "Use 16-bit autocast (bf16 where the card has it), sizes in multiples of 8.",
    )


@rule("precision", "unaligned sizes")
def unaligned_products(facts: Facts) -> Loss | None:
    """Tensor Core kernels that load one or two numbers at a time: an odd size (told by names)."""
    if facts.trace is None or not facts.trace.top_kernels:
        return None
    share = _kernel_share(facts.trace, UNALIGNED)
    lost = _on_tensor_cores(share) * facts.shares["compute"]
    return (
        lost,
        f"{share:.0%} of kernel time is in products of sizes that are not a multiple of 8: at "
        f"{limits.TENSOR_CORE_GAIN:g}x, the low end of published gains, that costs {lost:.0%} of "
        "the time",
        facts.looked_at,
        "Round layers, vocabulary and batch to multiples of 8, better 64.",
    )


@rule("memory_bandwidth", "elementwise chains")
def passes_over_memory(facts: Facts) -> Loss | None:
    """Chains of elementwise operators, each reading and writing all of its data (x-ray)."""
    seen = facts.xray
    if facts.kind != "cpu" or not seen:
        return None
    lost = min(1.0, seen["fusible_us"] / max(seen["window_us"], 1e-9)) * facts.shares["compute"]
    return (
        lost,
        f"{lost:.0%} of the time goes to passes over memory that one fused pass would save: "
        f"elementwise operators take {seen['elementwise_us'] / seen['window_us']:.0%} of the "
        "compute",
        f"x-ray of {seen['steps']} steps",
        FUSE,
    )


@rule("memory_bandwidth", "elementwise kernels")
def elementwise_kernels(facts: Facts) -> Loss | None:
    """Much of the kernel time is in elementwise kernels (a GPU; told by their names)."""
    if facts.trace is None or facts.kind != "gpu" or not facts.trace.top_kernels:
        return None
    share, ran = _kernel_share(facts.trace, PASSES), facts.trace.kernel_us
    running = min(1.0, ran / (facts.compute_us or ran or 1.0))  # the compute less the gaps
    lost = share * limits.FUSION_SAVES * running * facts.shares["compute"]
    return (
        lost,
        f"{share:.0%} of kernel time is in elementwise kernels, which only move data: one pass "
        f"instead of two would save {lost:.0%} of the time",
        facts.looked_at,
        FUSE,
    )


def _kernel_share(trace: Any, names: re.Pattern) -> float:
    """Return the share of kernel time in kernels whose names match, 0 to 1."""
    us = sum(k.total_us for k in trace.top_kernels if names.search(k.name)) / trace.steps
    return min(1.0, us / max(trace.kernel_us, 1e-9))


def _on_tensor_cores(share: float) -> float:
    """Return what of this share of the kernel time Tensor Cores would save."""
    return share * (1 - 1 / limits.TENSOR_CORE_GAIN)


# -- the order of the losses ---------------------------------------------------------------------


def losses(facts: Facts) -> tuple[list[Finding], dict[str, float]]:
    """Return what every rule finds, however small, and each bottleneck's loss: causes add up."""
    lost = [(name, cause, find(facts)) for name, cause, find in RULES]
    found = [loss(name, cause, *what) for name, cause, what in lost if what is not None]
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def rank(facts: Facts) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    (found, total), limit = losses(facts), limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    named.sort(key=lambda f: (-total[f.name], -f.lost_share))
    if named:
        return tuple(named)
    name = max(total, key=lambda n: total[n] / limit[n])
    return (
        Finding(
            "compute",
            "the device is the limit",
            f"the device computes for {facts.shares['compute']:.0%} of the time and no loss "
            f"reaches its threshold; the nearest is {name}, {total[name]:.0%} of the time with a "
            f"threshold of {limit[name]:.0%} ({facts.source}).",
            "Nothing in the pipeline holds the device back: what is left is a larger batch "
            "(notebook 04 Batch sizing), a smaller model or a faster device.",
        ),
    )


def lead(facts: Facts) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    _, total = losses(facts)
    above = {name: loss / limits.WORTH_NAMING[name] for name, loss in total.items()}
    if max(above.values()) < 1:
        return 1 - max(above.values())
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / max(above.values()), *(loss / first for loss in rest[:1])])
