"""Why a run gets no verdict: too short, shared, instruments that disagree, or a tie of causes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Facts
from labkit.analysis.finding import Finding
from labkit.analysis.rules import PAUSES, losses, rank
from labkit.analysis.witnesses import Witness
from labkit.spec import GRAPH_MODES

SHARED = "shared device"  # the cause of a verdict withheld: others used it


def too_short(steps: int) -> Finding | None:
    """Too few steps were measured."""
    missing = limits.MIN_STEPS - steps
    if missing <= 0:
        return None
    seen = f"only {steps} steps after the warm-up; a verdict needs {limits.MIN_STEPS}."
    return Finding("unsure", "too short", seen, f"Run {missing} more steps.")


def too_close(confidence: float, findings: tuple[Finding, ...]) -> Finding:
    """The run, resampled, gives other verdicts too."""
    names = list(dict.fromkeys(finding.name for finding in findings))
    return Finding(
        "unsure",
        "too close to call",
        f"only {confidence:.0%} of the resampled runs give the same verdict (threshold "
        f"{limits.MIN_CONFIDENCE:.0%}); the candidates are {' and '.join(names[:2])}.",
        "Run longer (more steps), on a quiet machine.",
    )


def gaps_hidden(busy: float, seen: tuple[Witness, ...], remedy: str) -> Finding:
    """A GPU is busy by its events, and nothing can tell how much of that is gaps."""
    told = "; ".join(witness.said for witness in seen)
    return Finding(
        "unsure",
        "busy is an upper bound",
        f"the device is busy at most {busy:.0%} of the time: a step counts from its first kernel "
        f"to its last, and whether gaps between them are waits for the host was not seen"
        f"{f': {told}' if told else ''}.",
        remedy,
    )


def contradiction(facts: Facts) -> Finding | None:
    """The x-ray's kernels and the run's own events cannot both be right (a GPU)."""
    if facts.kind != "gpu" or facts.trace is None or not facts.compute_us:
        return None
    kernel_us = facts.trace.kernel_us
    ratio = kernel_us / facts.compute_us
    graphs = facts.trace.cuda_graphs or facts.knobs.get("compile") in GRAPH_MODES
    missing = ratio == 0 or (graphs and ratio < limits.GRAPH_KERNELS)
    if not missing and ratio <= limits.DISAGREE_OVER:
        return None
    hidden = "CUDA graphs hide kernels from some profilers: run without compile='reduce-overhead'. "
    return Finding(
        "unsure",
        "instruments disagree",
        f"the x-ray saw kernels for {kernel_us / 1e3:.1f} ms per step, the run's own events a busy "
        f"device for {facts.compute_us / 1e3:.1f} ms.",
        (hidden if graphs else "") + "Look with Nsight Systems.",
    )


def device_shared(run: Any, facts: Facts) -> Finding | None:
    """Others worked on the device: a GPU's other processes, or what took the CPU's core."""
    threshold = f"threshold {limits.FOREIGN_LOAD:.0%}"
    if facts.kind == "gpu" and (others := _on_the_card(run)):
        seen = others
    elif _spoilt(facts):
        seen = (
            f"for {facts.taken_by_others:.0%} of the time another program had the core that the "
            f"model's thread needed (thread CPU time; {threshold})"
        )
        if facts.foreign_cores is not None:
            seen += f"; other programs used {facts.foreign_cores:.1f} cores"
    elif run.watched and _neighbours_pause(facts):
        seen = (
            "single steps took far longer than the others while other programs used "
            f"{facts.foreign_cores:.1f} of {facts.cores} cores (psutil; {threshold}): a watched "
            "loop cannot tell which of the two it was"
        )
    else:
        return None
    return Finding("unsure", SHARED, f"{seen}.", "Stop the other work and run again.")


def _on_the_card(run: Any) -> str | None:
    """Say what others computed on the GPU while the steps were measured; None where nothing.

    Who only has a context there (a notebook, a desktop) slows nobody down: each process's share of
    the SMs' time decides. Where the driver does not tell it (MIG, older drivers, older records) a
    process counts that came after the warm-up; one that was there before may be idle.
    """
    start, end = run.stamps[max(run.warmup - 1, 0), 5], run.stamps[-1, 5]
    samples = [(run.seconds(sample["t_ns"]), sample) for sample in run.telemetry]
    shares = [s.get("others_sm") for at, s in samples if start < at <= end]
    shares = [share for share in shares if share is not None]
    if shares:
        text = f"kernels of other processes ran on the same GPU for {fmean(shares):.0%} of the time"
        over = fmean(shares) > limits.FOREIGN_LOAD
        return f"{text} (NVML; threshold {limits.FOREIGN_LOAD:.0%})" if over else None
    counts = [(at, s["others"]) for at, s in samples if at <= end and s.get("others") is not None]
    before = [count for at, count in counts if at <= start] or [count for _, count in counts[:1]]
    came = max((count for _, count in counts), default=0) - max(before, default=0)
    return f"{came} other processes came onto the same GPU (NVML)" if came else None


def _neighbours_pause(facts: Facts) -> bool:
    """Return whether long steps of a watched loop, whose thread is not timed, may be others'."""
    taken = (facts.foreign_cores or 0.0) > limits.FOREIGN_LOAD * (facts.cores or 1)
    return facts.kind == "cpu" and taken and rank(facts)[0].cause == PAUSES


def _spoilt(facts: Facts) -> bool:
    """Return whether programs that took the CPU's core spoil the verdict.

    They make all that the host does longer in proportion, so its shares stand. But they starve
    loader workers, which is then no fault of the pipeline, and a device that others use is not
    the limit.
    """
    if facts.taken_by_others <= limits.FOREIGN_LOAD:
        return False
    first, (_, lost) = rank(facts)[0], losses(facts)
    starved = first.name == "input" and bool(facts.knobs.get("num_workers"))
    return first.name == "compute" or (starved and lost["input"] <= facts.taken_by_others)
