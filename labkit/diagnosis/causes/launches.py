"""The host launches too slowly for a device that waits inside the step, or looks busy."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import cause
from labkit.diagnosis.causes.copies import lost_to_copies
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    ANOTHER_TRAINING,
    NEIGHBOUR,
    ROUNDED,
    Finding,
    Measured,
    Remedy,
    explains,
    remedy,
)
from labkit.diagnosis.watched_loop import HOST_ALONE
from labkit.spec import KNOBS

MOST_A_BATCH = int(KNOBS["batch_size"].high or 0)
LARGER = 4  # times as large a batch is tried
# Of the cores, at the most, while a GPU trains (facebookresearch/spdl f43e287,
# docs/source/optimization_guide/noisy_neighbour.rst)
QUIET = "SPDL's authors advise at most 40% of the CPU while a GPU trains"

# -- fewer and larger kernels ----------------------------------------------------------------------


@remedy
def more_per_call(evidence: Evidence) -> Remedy | None:
    """A CPU, on which whatever makes operators fewer and larger helps."""
    more = Remedy(
        "more_per_call",
        "Give the device more work per call: a larger batch, batched operations instead of Python "
        "loops in forward, or torch.compile.",
        "launches",
    )
    return more if evidence.kind == "cpu" else None


@remedy
def compiled(evidence: Evidence) -> Remedy | None:
    """A model that is not compiled: with CUDA graphs where a GPU's steps are alike.

    A graph's next replay overwrites the gradients that accumulation has to keep: PyTorch raises
    (pytorch/pytorch#169545). And each size of a batch has a graph of its own to be recorded.
    In a process with several cards a model is nn.DataParallel's: torch.compile does not reach its
    threads (pytorch/pytorch#94636), and a Trainer does not call it.
    """
    code = evidence.code
    is_compiled = evidence.knobs.get("compile") or code.is_compiled
    if is_compiled or not evidence.compiles or code.cards > 1:
        return None
    is_each_an_update = evidence.knobs.get("accumulation_steps") == 1  # of a bench's pipeline
    alike = is_each_an_update and evidence.batch.sizes <= limits.FEW_SIZES
    has_graphs = evidence.kind == "gpu" and alike
    return Remedy(
        "compile",
        "Launch fewer and larger kernels: torch.compile (reduce-overhead adds CUDA graphs, but "
        "breaks gradient accumulation and records each batch size anew), a larger batch, no "
        ".item() in the step.",
        "launches",
        {"compile": "reduce-overhead" if has_graphs else "default"},
        cost="compiling at the start, and again for each new shape",
        check=ROUNDED,
        price=2,
    )


@remedy
def fused_optimizer(evidence: Evidence) -> Remedy | None:
    """An optimizer that could be fused; of a Trainer, whose default is, only one known to."""
    code = evidence.code
    could = not code.trainer if code.may_fuse is None else code.may_fuse
    if not evidence.trains or not could or evidence.knobs.get("fused_optimizer"):
        return None
    return Remedy(
        "fused_optimizer",
        "Use a fused optimizer (fused_optimizer=True).",
        "launches",
        {"fused_optimizer": True},
    )


@remedy
def larger_batch(evidence: Evidence) -> Remedy:
    """A larger batch: a number where the present one is known."""
    larger = LARGER * int(evidence.knobs.get("batch_size") or 0)
    changes = {"batch_size": larger} if 0 < larger <= MOST_A_BATCH else {}
    return Remedy(
        "larger_batch",
        "Give each kernel more to do: a larger batch" + ("." if not changes else f" of {larger}."),
        "batch",
        changes,
        cost="memory, and a different training: tune the learning rate",
        check=ANOTHER_TRAINING,
        price=3,
    )


FEWER_LAUNCHES = (more_per_call, compiled, fused_optimizer, larger_batch)


@cause("launches", "Python_and_tiny_operators")
def tiny_operators(evidence: Evidence) -> Finding | None:
    """Python and the dispatch of small operators take the time (a CPU).

    It costs the share of the x-ray's steps between operators and in those of under 10 µs, times the
    share of the time spent on compute.
    """
    xray = evidence.xray
    if evidence.kind != "cpu":
        return None
    # The profiler's own cost (1 to 2 µs an operator) is in it: the threshold was calibrated so
    lost = evidence.compute_share * xray.share(xray.gap_us + xray.tiny_us)
    seen = (
        "of the time, inside the compute, goes to Python and to dispatching "
        f"{xray.tiny_ops:g} operators of under 10 µs per step"
    )
    measured = (Measured(seen, lost, by=evidence.inside),)
    return Finding("launch", "Python_and_tiny_operators", lost, measured, FEWER_LAUNCHES)


# -- cores that are full ---------------------------------------------------------------------------


def lost_to_neighbours(evidence: Evidence) -> float:
    """Return the share of time in which launches stood in line and the queue could run dry."""
    return (evidence.card.known("launches") or 0.0) * (1 - evidence.card.ahead_share)


@remedy
def quieter(evidence: Evidence) -> Remedy:
    """Cores that are full: of this run's own workers, or of other programs."""
    use = evidence.use
    others = (use.others or 0.0) > (use.own or 0.0)
    how = "Stop the other programs" if others else "Use fewer workers, or cheaper items"
    return Remedy("quieter", f"{how}: {QUIET}.", "workers")


@cause("neighbour", NEIGHBOUR)
def noisy_neighbour(evidence: Evidence) -> Finding | None:
    """The cores are full, so that the threads that launch a GPU's kernels stand in line for one.

    A device that still has work in its queue does not notice: it costs the share of the time these
    threads had no core, times the share in which the queue could run dry.
    """
    use = evidence.use
    lost = lost_to_neighbours(evidence)
    if not lost:
        return None
    waited = "of the time the threads that launch kernels had no core"
    measured = [
        Measured(waited, evidence.card.launches, by="time in line, Linux's schedstat"),
        Measured("of the time the GPU's queue could run dry", 1 - evidence.card.ahead_share),
    ]
    if use.own is not None:
        used = f"{use.own:.1f} of {use.cores} cores with {evidence.worker_count} workers"
        measured.append(Measured(f"this run used {used}"))
    return Finding("launch", NEIGHBOUR, lost, tuple(measured), (quieter,))


# -- a GPU that waits inside the step --------------------------------------------------------------


@cause("launches", "gaps_between_kernels")
def gaps_between_kernels(evidence: Evidence) -> Finding | None:
    """A GPU waits for launches inside the step: so its kernels against its events.

    It costs the share of the compute, as the run's events have it, in which the x-ray saw no
    kernel, without what neighbours make of it.
    """
    kernel_us = evidence.kernels.kernel_us
    if evidence.known("trace") is not None:
        return None
    gaps = evidence.gap_share * evidence.compute_share
    lost = max(gaps - lost_to_neighbours(evidence), 0.0)
    seen = (
        "of the time no kernel runs inside the step's compute: kernels take "
        f"{kernel_us / 1e3:.1f} ms of {evidence.compute_us / 1e3:.1f} ms"
    )
    measured = (Measured(seen, gaps, by="x-ray against events"),)
    return Finding("launch", "gaps_between_kernels", lost, measured, FEWER_LAUNCHES)


NO_SYNCHRONISING = Remedy(
    "no_synchronising",
    "Do not wait for the device in every step: collect losses on it, and read them rarely. A "
    "package has a setting for that: TrainingArguments(logging_nan_inf_filter=False) of Hugging "
    "Face's Trainer. A GradScaler waits as well: autocast to BF16 needs none.",
    "launches",
    code="total += loss.detach()  # and only now and then: total.item()\n",
)


explains("loop-body", "sync")


@cause("launches", "gaps_or_small_kernels")
def idle_while_busy(evidence: Evidence) -> Finding | None:
    """A second instrument says that a GPU, busy by its events, did little.

    Cause "gaps_or_small_kernels", or "sync" where the body's lines wait for the device for
    WORTH_NAMING of it. It is found where the instrument (the SMs' activity, power) reads less than
    SMS_REST or POWER_RESTS; it costs what the instrument leaves of the busy time, without what
    neighbours make of it and what the body's other causes find.
    """
    witness = evidence.card.known("witness")
    if witness is None or witness.works is not False or evidence.known("kernels") is not None:
        return None
    busy = evidence.compute_share
    loop = evidence.known("loop")
    # The host's work alone and copies are findings of their own
    besides = lost_to_neighbours(evidence)
    besides += busy * sum(evidence.body.get(part, 0.0) for part in HOST_ALONE)
    besides += lost_to_copies(evidence)[0] if loop else 0.0
    lost = max(0.0, (1 - witness.share) * busy - besides)
    seen = (
        f"of the time the device is busy by its events, but {witness.said}: gaps between "
        "kernels, or kernels too small for it; a trace of torch.profiler tells which"
    )
    measured = Measured(seen, busy, by=evidence.source)
    waits = loop.lines.body.get("sync", 0.0) if loop else 0.0
    if waits < limits.WORTH_NAMING["launch"]:
        return Finding("launch", "gaps_or_small_kernels", lost, (measured,), FEWER_LAUNCHES)
    lines = loop.lines.rows(loop.lines.of_part("sync"))[:3]
    there = Measured(f"of the body the host waits in {lines[0].what}", waits)
    remedies = (NO_SYNCHRONISING, *FEWER_LAUNCHES)
    return Finding("launch", "sync", lost, (measured, there), remedies, lines)
