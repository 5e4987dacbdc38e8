"""The rules of the diagnosis: each looks at the facts for one cause of lost device time.

A rule yields what its cause costs, however little, with the evidence and the remedy, and nothing
where it does not apply or cannot tell. `rank` decides which losses are worth a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def losses(facts: Facts) -> tuple[list[Finding], dict[str, float]]:
    """Return what every rule finds, however small, and each bottleneck's loss: causes add up."""
    found = [finding for rule in RULES for finding in rule(facts)]
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def rank(facts: Facts) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    (found, total), limit = losses(facts), limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    if named:
        return tuple(sorted(named, key=lambda f: (-total[f.name], -f.lost_share)))
    name = max(total, key=lambda n: total[n] / limit[n])
    healthy = Finding(
        "compute",
        "the device is the limit",
        f"the device computes for {facts.shares['compute']:.0%} of the time and no loss reaches "
        f"its threshold; the nearest is {name}, {total[name]:.0%} of the time with a threshold of "
        f"{limit[name]:.0%} ({facts.source}).",
        "Nothing in the pipeline holds the device back: what is left is a larger batch (notebook "
        "04 Batch sizing), a smaller model or a faster device.",
    )
    return (healthy,)


def lead(facts: Facts) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    _, total = losses(facts)
    nearest = max(loss / limits.WORTH_NAMING[name] for name, loss in total.items())
    if nearest < 1:
        return 1 - nearest
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / nearest, *(loss / first for loss in rest[:1])])


# -- the rules -----------------------------------------------------------------------------------


def in_the_loop(facts: Facts) -> Iterator[Finding]:
    """The device has nothing to compute: it waits for data, a copy or the host."""
    shares, source = facts.shares, facts.source

    lost = shares["wait"]
    stalls = facts.stalls > limits.STALLS and lost > 0.02
    seen = f"{lost:.0%} of the time is spent waiting for the next batch"
    seen += f", {facts.stalls:.0%} of it in a tenth of the steps: stalls" if stalls else ""
    yield loss("input", "waiting for data", lost, seen, source, _loader_advice(facts, stalls))

    if (lost := facts.taken_by_workers) is not None:
        seen = (
            f"for {lost:.0%} of the time a loader worker had the core that the model's thread "
            f"needed, with {facts.knobs['num_workers']} workers on {facts.cores} cores"
        )
        change = "Use fewer workers, or do less work per item: preprocess offline."
        clocks = "thread CPU time against wall time"
        yield loss("input", "workers take the device's cores", lost, seen, clocks, change)

    lost = shares["copy"]
    change = "Send one contiguous block per batch"
    if facts.kind == "gpu" and facts.knobs.get("pin_memory"):
        change += " and copy the next batch under the compute of this one"
    elif facts.kind == "gpu":
        change += " from pinned memory: pin_memory=True, then non_blocking=True"
    seen = f"{lost:.0%} of the time the device waits for a copy"
    yield loss("transfer", "copies", lost, seen, source, f"{change}.")

    lost = shares["other"] + shares["launch"]
    seen = f"{lost:.0%} of the time the device waits while the host does something other than data "
    seen += "and copies"
    change = (
        "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; "
        "where there is none, launch fewer and larger kernels."
    )
    yield loss("launch", "host work in the loop", lost, seen, source, change)

    seen = (
        f"{facts.pauses:.0%} of the time is lost to single steps that compute far longer than an "
        "ordinary one"
    )
    change = "Look for what runs now and then: garbage collection, recompiles, checkpoints."
    yield loss("launch", PAUSES, facts.pauses, seen, source, change)


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


def inside_the_compute(facts: Facts) -> Iterator[Finding]:
    """The host is too slow for a device that looks busy."""
    share, xray, trace = facts.shares["compute"], facts.xray, facts.trace
    if facts.kind == "cpu" and xray:
        # The profiler's own cost (1 to 2 µs an operator) is in it; the threshold was calibrated so
        lost = share * min(1.0, (xray["gap_us"] + xray["tiny_us"]) / max(xray["window_us"], 1e-9))
        seen = (
            f"{lost:.0%} of the time, inside the compute, goes to Python and to dispatching "
            f"{xray['tiny_ops']} operators of under 10 µs per step"
        )
        source, fixed = f"x-ray of {xray['steps']} steps", xray.get("fixed_share")
        source += "" if fixed is None else f"; {fixed:.0%} of it does not grow with the batch"
        change = (
            "Give the device more work per call: a larger batch, batched instead of looped "
            "operations, torch.compile, no Python loops in forward."
        )
        yield loss("launch", "Python and tiny operators", lost, seen, source, change)

    if facts.kind == "gpu" and trace is not None and facts.compute_us and not facts.from_trace:
        lost = max(0.0, 1 - trace.kernel_us / facts.compute_us) * share
        seen = (
            f"{lost:.0%} of the time no kernel runs inside the step's compute: kernels take "
            f"{trace.kernel_us / 1e3:.1f} ms of {facts.compute_us / 1e3:.1f} ms"
        )
        source = "x-ray against events"
        yield loss("launch", "gaps between kernels", lost, seen, source, FEWER_LAUNCHES)

    witness = deciding(facts.witnesses)  # a GPU without an x-ray
    if witness is not None and not witness.works:
        seen = (
            f"the device is busy {share:.0%} of the time by its events, but {witness.said}: gaps "
            "between kernels, or kernels too small for it"
        )
        lost = (1 - witness.share) * share
        change = f"{FEWER_LAUNCHES} An x-ray (xray=True) tells gaps from small kernels."
        yield loss("launch", "gaps or small kernels", lost, seen, facts.source, change)


def number_format(facts: Facts) -> Iterator[Finding]:
    """The heavy math runs in FP32, or in a 16-bit format of which Tensor Cores make little."""
    share, trace, speedup = facts.shares["compute"], facts.trace, facts.xray.get("bf16_speedup")
    if speedup and speedup > 0:
        lost = max(0.0, 1 - 1 / speedup) * share
        seen = (
            f"FP32 costs {lost:.0%} of the time: in BF16 the same compute took 1/{speedup:.2f} as "
            "long"
        )
        change = "Set precision='bf16' and compare the losses."
        yield loss("precision", "FP32", lost, seen, "measured on this run's own step", change)
    if trace is None:
        return

    def costs(part: float) -> tuple[float, str]:
        lost = part * (1 - 1 / limits.TENSOR_CORE_GAIN) * share
        gain = f"at {limits.TENSOR_CORE_GAIN:g}x, the low end of published gains"
        return lost, f"{gain}, that costs {lost:.0%} of the time"

    could, uses = trace.tensor_core_eligible_share, trace.tensor_core_share
    if could is not None and speedup is None:  # else it was measured: better than told by names
        lost, so = costs(max(0.0, could - uses))
        seen = (
            f"{could:.0%} of kernel time is in operators that can use Tensor Cores, {uses:.0%} "
            f"does: {so}"
        )
        change = "Use 16-bit autocast (bf16 where the card has it), sizes in multiples of 8."
        yield loss("precision", "no Tensor Cores", lost, seen, facts.looked_at, change)
    if trace.top_kernels:
        odd = _kernel_share(trace, UNALIGNED)
        lost, so = costs(odd)
        seen = (
            f"{odd:.0%} of kernel time is in products of sizes that are not a multiple of 8: {so}"
        )
        change = "Round layers, vocabulary and batch to multiples of 8, better 64."
        yield loss("precision", "unaligned sizes", lost, f"{seen}: {so}", facts.looked_at, change)


def memory_traffic(facts: Facts) -> Iterator[Finding]:
    """Chains of elementwise operators, each of which reads and writes all of its data."""
    share, xray, trace = facts.shares["compute"], facts.xray, facts.trace
    if facts.kind == "cpu" and xray:
        window = max(xray["window_us"], 1e-9)
        lost = min(1.0, xray["fusible_us"] / window) * share
        seen = (
            f"{lost:.0%} of the time goes to passes over memory that one fused pass would save: "
            f"elementwise operators take {xray['elementwise_us'] / window:.0%} of the compute"
        )
        source = f"x-ray of {xray['steps']} steps"
        yield loss("memory_bandwidth", "elementwise chains", lost, seen, source, FUSE)
    if facts.kind == "gpu" and trace is not None and trace.top_kernels:
        moves, ran = _kernel_share(trace, PASSES), trace.kernel_us
        running = min(1.0, ran / (facts.compute_us or ran or 1.0))  # the compute less the gaps
        lost = moves * limits.FUSION_SAVES * running * share
        seen = (
            f"{moves:.0%} of kernel time is in elementwise kernels, which only move data: one pass "
            f"instead of two would save {lost:.0%} of the time"
        )
        yield loss("memory_bandwidth", "elementwise kernels", lost, seen, facts.looked_at, FUSE)


def _kernel_share(trace: Any, names: re.Pattern) -> float:
    """Return the share of kernel time in kernels whose names match, 0 to 1."""
    us = sum(k.total_us for k in trace.top_kernels if names.search(k.name)) / trace.steps
    return min(1.0, us / max(trace.kernel_us, 1e-9))


RULES = (in_the_loop, inside_the_compute, number_format, memory_traffic)
