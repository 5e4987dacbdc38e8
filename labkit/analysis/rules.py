"""The rules: each looks at the facts for one cause of lost device time and says what it costs.

A rule returns a Finding whatever the size of the loss, or None where it cannot tell or does not
apply; what is large enough to be named is decided in `diagnosis`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Facts
from labkit.analysis.finding import Finding, advise
from labkit.analysis.witnesses import deciding

Rule = Callable[[Facts], Finding | None]
# Kernels that only move data: PyTorch's elementwise ones, and those of an optimizer that runs each
# of its operations over all parameters (foreach); a fused one does them in one pass
PASSES = re.compile(r"elementwise|multi_tensor_apply(?!.*fused)", re.I)
UNALIGNED = re.compile(r"(?:tensorop|wmma|[hs]?16816|[hs]1688|h884).*_align[12]\b")
LIMIT = {name: f"threshold {share:.0%}" for name, share in limits.WORTH_NAMING.items()}


def waits_for_data(facts: Facts) -> Finding:
    """The loop asks for a batch that is not ready."""
    lost = facts.shares["wait"]
    pattern = ""
    if facts.stalls > 0.6 and lost > 0.02:
        pattern = f" {facts.stalls:.0%} of the waiting falls into a tenth of the steps: stalls."
    return Finding(
        "input",
        "waiting for data",
        f"{lost:.0%} of the time passes waiting for the next batch "
        f"({facts.source}; {LIMIT['input']}).{pattern}",
        advise(_loader_advice(facts, bool(pattern)), lost, "03"),
        lost,
    )


def _loader_advice(facts: Facts, stalls: bool) -> str:
    workers = facts.knobs.get("num_workers")
    cores = facts.cores or 0
    if workers is None:
        return "Give the DataLoader workers (num_workers=4 to start from) and a leaner dataset."
    if workers == 0:
        return "Prepare batches in other processes: num_workers=4 to start from."
    if stalls:
        ready = workers * (facts.knobs.get("prefetch_factor") or 2)
        return f"Keep more than {ready} batches ready: raise prefetch_factor, to ride out stalls."
    if cores and workers > 2 * cores and not facts.knobs.get("io_ms"):
        return f"{workers} workers share {cores} cores: try {cores}, and do less work per item."
    return "Raise num_workers; where that gains nothing, do less work per item or preprocess."


def loader_takes_cores(facts: Facts) -> Finding | None:
    """The loader's workers run on the cores that the model needs (a CPU as the device)."""
    lost = facts.taken_by_workers
    if lost is None:
        return None
    return Finding(
        "input",
        "workers take the device's cores",
        f"for {lost:.0%} of the time the model's thread had work but a loader worker had its core "
        f"(thread CPU time against wall time; {LIMIT['input']}), with "
        f"{facts.knobs['num_workers']} workers on {facts.cores} cores.",
        advise("Use fewer workers, or do less work per item: preprocess offline.", lost, "03"),
        lost,
    )


def copies(facts: Facts) -> Finding:
    """The device waits while a batch is copied to it."""
    lost = facts.shares["copy"]
    pinned = facts.knobs.get("pin_memory")
    change = "Send one contiguous block per batch"
    if facts.kind == "gpu":
        change += (
            " and copy the next batch under the compute of this one"
            if pinned
            else (" from pinned memory: pin_memory=True, then non_blocking=True")
        )
    return Finding(
        "transfer",
        "copies",
        f"{lost:.0%} of the time the device waits for a copy ({facts.source}; "
        f"{LIMIT['transfer']}).",
        advise(f"{change}.", lost, "03"),
        lost,
    )


def host_between_steps(facts: Facts) -> Finding:
    """The host does something else than feeding the device: logs, checkpoints, evaluates."""
    lost = facts.shares["other"] + facts.shares["launch"]
    return Finding(
        "launch",
        "host work in the loop",
        f"{lost:.0%} of the time the device waits while the host is busy with something other than "
        f"data and copies ({facts.source}; {LIMIT['launch']}).",
        advise(
            "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; "
            "where there is none, launch fewer and larger kernels.",
            lost,
            "07",
        ),
        lost,
    )


def pauses(facts: Facts) -> Finding:
    """Single steps compute far longer than the others."""
    lost = facts.pauses
    return Finding(
        "launch",
        "pauses inside steps",
        f"{lost:.0%} of the time is lost to single steps that compute far longer than an ordinary "
        f"one ({facts.source}; {LIMIT['launch']}).",
        advise(
            "Look for what runs now and then: garbage collection, recompiles, checkpoints.",
            lost,
            "07",
        ),
        lost,
    )


def host_inside_compute(facts: Facts) -> Finding | None:
    """Python and the dispatch of tiny operators fill the compute (a CPU as the device)."""
    seen = facts.xray
    if facts.kind != "cpu" or not seen:
        return None
    lost = host_share(seen) * facts.shares["compute"]
    fixed = seen.get("fixed_share")
    also = "" if fixed is None else f"; {fixed:.0%} of it does not grow with the batch"
    return Finding(
        "launch",
        "Python and tiny operators",
        f"{lost:.0%} of the time, inside the compute, goes to Python and to dispatching "
        f"{seen['tiny_ops']} operators of under 10 µs a step (x-ray of {seen['steps']} steps{also};"
        f" {LIMIT['launch']}).",
        advise(
            "Give the device more work per call: a larger batch, batched instead of looped "
            "operations, torch.compile, no Python loops in forward.",
            lost,
            "07",
        ),
        lost,
    )


def host_share(seen: dict) -> float:
    """Return the share of the compute in gaps and tiny operators.

    The profiler's own cost (1 to 2 µs an operator) is in it; the threshold was calibrated with it.
    """
    return min(1.0, (seen["gap_us"] + seen["tiny_us"]) / max(seen["window_us"], 1e-9))


def gaps_between_kernels(facts: Facts) -> Finding | None:
    """The device idles between the kernels of a step (a GPU; its own events against the x-ray)."""
    if facts.kind != "gpu" or facts.trace is None or facts.source.startswith("profiler"):
        return None
    ran = facts.trace.kernel_us
    lost = max(0.0, 1 - ran / facts.compute_us) * facts.shares["compute"]
    return Finding(
        "launch",
        "gaps between kernels",
        f"{lost:.0%} of the time no kernel runs inside the step's compute: kernels take "
        f"{ran / 1e3:.1f} ms of {facts.compute_us / 1e3:.1f} ms (x-ray against events; "
        f"{LIMIT['launch']}).",
        advise(
            "Launch fewer and larger kernels: a larger batch, torch.compile (reduce-overhead uses "
            "CUDA graphs), no .item() in the step.",
            lost,
            "07",
        ),
        lost,
    )


def idles_while_busy(facts: Facts) -> Finding | None:
    """The device hardly works in the time that its events call busy (a GPU without an x-ray)."""
    seen = deciding(facts.witnesses)
    if seen is None or seen.works:
        return None
    lost = (1 - seen.share) * facts.shares["compute"]
    return Finding(
        "launch",
        "gaps or small kernels",
        f"the device is busy {facts.shares['compute']:.0%} of the time by its events, but "
        f"{seen.said}: gaps between kernels, or kernels too small for it ({LIMIT['launch']}).",
        advise(
            "Launch fewer and larger kernels: a larger batch, torch.compile (reduce-overhead uses "
            "CUDA graphs), no .item() in the step. An x-ray (xray=True) tells gaps from small "
            "kernels.",
            lost,
            "07",
        ),
        lost,
    )


def slow_format(facts: Facts) -> Finding | None:
    """The heavy math runs in FP32 where BF16 was measured to be faster on this device."""
    speedup = facts.xray.get("bf16_speedup")
    if not speedup or speedup < 0:
        return None
    lost = max(0.0, 1 - 1 / speedup) * facts.shares["compute"]
    return Finding(
        "precision",
        "FP32",
        f"the same compute in BF16 took 1/{speedup:.2f} of the time (measured on this run's own "
        f"step): FP32 costs {lost:.0%} of the time ({LIMIT['precision']}).",
        advise("Set precision='bf16' and compare the losses.", lost, "05"),
        lost,
    )


def no_tensor_cores(facts: Facts) -> Finding | None:
    """Kernels that could use Tensor Cores do not (told by their names in a profiler trace)."""
    if facts.trace is None or facts.trace.tensor_core_eligible_share is None:
        return None
    if facts.xray.get("bf16_speedup") is not None:
        return None  # measured: better than told by names
    could, uses = facts.trace.tensor_core_eligible_share, facts.trace.tensor_core_share
    lost = max(0.0, could - uses) * (1 - 1 / limits.TENSOR_CORE_GAIN) * facts.shares["compute"]
    return Finding(
        "precision",
        "no Tensor Cores",
        f"{could:.0%} of kernel time is of operators that can use Tensor Cores and {uses:.0%} does "
        f"({facts.looked_at}): at {limits.TENSOR_CORE_GAIN:g}x, the low end of published gains, "
        f"that costs {lost:.0%} of the time ({LIMIT['precision']}).",
        advise("Use 16-bit autocast (bf16 where the card has it), sizes in multiples of 8.", lost,
               "05"),
        lost,
    )  # fmt: skip


def unaligned_products(facts: Facts) -> Finding | None:
    """Tensor Core kernels that load one or two numbers at a time: an odd size (told by names).

    CUTLASS ends a kernel's name in the alignment it was made for; 16-bit products of sizes in
    multiples of 8 run in `align8`.
    """
    if facts.trace is None or not facts.trace.top_kernels:
        return None
    seen = facts.trace
    us = sum(k.total_us for k in seen.top_kernels if UNALIGNED.search(k.name)) / seen.steps
    share = min(1.0, us / max(seen.kernel_us, 1e-9))
    lost = share * (1 - 1 / limits.TENSOR_CORE_GAIN) * facts.shares["compute"]
    return Finding(
        "precision",
        "unaligned sizes",
        f"{share:.0%} of kernel time is in products of sizes that are no multiple of 8: at "
        f"{limits.TENSOR_CORE_GAIN:g}x, the low end of published gains of Tensor Cores, that costs "
        f"{lost:.0%} of the time ({facts.looked_at}; {LIMIT['precision']}).",
        advise("Round layers, vocabulary and batch to multiples of 8, better 64.", lost, "05"),
        lost,
    )


def passes_over_memory(facts: Facts) -> Finding | None:
    """Chains of elementwise operators, each reading and writing all of its data (x-ray)."""
    seen = facts.xray
    if facts.kind != "cpu" or not seen:
        return None
    share = min(1.0, seen["fusible_us"] / max(seen["window_us"], 1e-9))
    lost = share * facts.shares["compute"]
    return Finding(
        "memory_bandwidth",
        "elementwise chains",
        f"{lost:.0%} of the time goes to passes over memory that one fused pass would save: "
        f"elementwise operators take {seen['elementwise_us'] / seen['window_us']:.0%} of the "
        f"compute (x-ray of {seen['steps']} steps; {LIMIT['memory_bandwidth']}).",
        advise("Fuse them: torch.compile, fused_optimizer=True, a fused kernel.", lost, "07"),
        lost,
    )


def elementwise_kernels(facts: Facts) -> Finding | None:
    """Much of the kernel time is in elementwise kernels (a GPU; told by their names)."""
    if facts.trace is None or facts.kind != "gpu" or not facts.trace.top_kernels:
        return None
    seen = facts.trace
    us = sum(k.total_us for k in seen.top_kernels if PASSES.search(k.name)) / seen.steps
    share = min(1.0, us / max(seen.kernel_us, 1e-9))
    running = min(
        1.0, seen.kernel_us / (facts.compute_us or seen.kernel_us or 1.0)
    )  # less the gaps
    lost = share * limits.FUSION_SAVES * running * facts.shares["compute"]
    return Finding(
        "memory_bandwidth",
        "elementwise kernels",
        f"{share:.0%} of kernel time is in elementwise kernels, which only move data: one pass "
        f"instead of two would save {lost:.0%} of the time ({facts.looked_at}; "
        f"{LIMIT['memory_bandwidth']}).",
        advise("Fuse them: torch.compile, fused_optimizer=True, a fused kernel.", lost, "07"),
        lost,
    )


RULES: tuple[Rule, ...] = (
    waits_for_data,
    loader_takes_cores,
    copies,
    host_between_steps,
    pauses,
    host_inside_compute,
    gaps_between_kernels,
    idles_while_busy,
    slow_format,
    no_tensor_cores,
    unaligned_products,
    passes_over_memory,
    elementwise_kernels,
)
