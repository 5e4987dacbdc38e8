"""The host issues work too slowly, or does something else, while the device waits."""

from __future__ import annotations

import re

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import cause
from labkit.diagnosis.causes.copies import copies_in_the_body
from labkit.diagnosis.causes.loader import INTO_A_DATASET
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import (
    ANOTHER_TRAINING,
    NEIGHBOUR,
    ROUNDED,
    Finding,
    Measured,
    Remedy,
    explains,
    loss,
)
from labkit.diagnosis.watched_loop import HOST_ALONE
from labkit.spec import KNOBS

MOST_A_BATCH = int(KNOBS["batch_size"].high or 0)
LARGER = 4  # times as large a batch is tried

MORE_PER_CALL = Remedy(
    "more_per_call",
    "Give the device more work per call: a larger batch, batched operations instead of Python "
    "loops in forward, or torch.compile.",
    "launches",
)
FUSED = Remedy(
    "fused_optimizer",
    "Use a fused optimizer (fused_optimizer=True).",
    "launches",
    {"fused_optimizer": True},
)


def larger_kernels(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what makes kernels fewer and larger: a compiled model, a fused optimizer.

    A graph's next replay overwrites the gradients that accumulation has to keep: PyTorch raises
    (pytorch/pytorch#169545).
    """
    code, knobs = evidence.code, evidence.knobs
    found = []
    is_compiled = knobs.get("compile") or code.is_compiled
    if evidence.compiles and not is_compiled:
        has_graphs = evidence.kind == "gpu" and knobs.get("accumulation_steps") == 1
        compiled = Remedy(
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
        found.append(compiled)
    may_fuse = not code.trainer if code.may_fuse is None else code.may_fuse
    if evidence.trains and may_fuse and not knobs.get("fused_optimizer"):
        found.append(FUSED)
    return tuple(found)


def fewer_launches(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what helps a device that waits for launches."""
    larger = LARGER * int(evidence.knobs.get("batch_size") or 0)
    larger_batch = Remedy(
        "larger_batch",
        "Give each kernel more to do: a larger batch.",
        "batch",
        {"batch_size": larger} if 0 < larger <= MOST_A_BATCH else {},
        cost="memory, and a different training: tune the learning rate",
        check=ANOTHER_TRAINING,
        price=3,
    )
    first = (MORE_PER_CALL,) if evidence.kind == "cpu" else ()
    return (*first, *larger_kernels(evidence), larger_batch)


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
    remedies = fewer_launches(evidence)
    name = "Python_and_tiny_operators"
    return loss("launch", name, lost, seen, *remedies, by=evidence.inside)


# Of the cores, at the most, while a GPU trains (facebookresearch/spdl f43e287,
# docs/source/optimization_guide/noisy_neighbour.rst)
QUIETER = Remedy(
    "quieter",
    "Use fewer workers, or cheaper items, and stop other programs: SPDL's authors advise at most "
    "40% of the CPU while a GPU trains.",
    "workers",
)


def lost_to_neighbours(evidence: Evidence) -> float:
    """Return the share of time in which launches stood in line and the queue could run dry."""
    return (evidence.card.known("launches") or 0.0) * (1 - evidence.card.ahead_share)


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
    seen = (
        "of the time the threads that launch kernels had no core; this run used "
        f"{use.own or 0.0:.1f} of {use.cores} cores with {evidence.worker_count} workers"
    )
    by = "time in line, Linux's schedstat"
    measured = (Measured(seen, evidence.card.launches, by=by),)
    return Finding("launch", NEIGHBOUR, lost, measured, (QUIETER,))


NO_SYNCHRONISING = Remedy(
    "no_synchronising",
    "Do not wait for the device in every step: collect losses on it, and read them rarely. A "
    "package has a setting for that: TrainingArguments(logging_nan_inf_filter=False) of Hugging "
    "Face's Trainer. A GradScaler waits as well: autocast to BF16 needs none.",
    "launches",
    code="total += loss.detach()  # and only now and then: total.item()\n",
)


explains("loop-body", "sync")


@cause("launches", "gaps_between_kernels", "gaps_or_small_kernels")
def idle_while_busy(evidence: Evidence) -> Finding | None:
    """A GPU, busy by its events, did little: so the x-ray's kernels, or a second instrument.

    Cause "gaps_between_kernels" of an x-ray; else "gaps_or_small_kernels" where an instrument (the
    SMs' activity, power) reads less than SMS_REST or POWER_RESTS, or "sync" where the body's lines
    wait for the device for WORTH_NAMING of it. It costs what is left of the busy time, without what
    neighbours make of it and what the body's other causes find.
    """
    busy = evidence.compute_share
    kernels = evidence.known("kernels")
    witness = evidence.card.known("witness")
    if evidence.known("trace") is not None:
        return None
    if kernels is not None:
        idle, name = evidence.gap_share, "gaps_between_kernels"
        told = f"kernels take {kernels.kernel_us / 1e3:.1f} of {evidence.compute_us / 1e3:.1f} ms"
    elif witness is not None and witness.works is False:
        idle, name, told = 1 - witness.share, "gaps_or_small_kernels", witness.said
    else:
        return None
    seen = f"of the time, while the device is busy by its events, it waits or does little: {told}"
    copying = asked(copies_in_the_body, evidence)
    # The host's work alone and copies are findings of their own
    besides = lost_to_neighbours(evidence) + (copying.lost_share if copying else 0.0)
    besides += busy * sum(evidence.body.get(part, 0.0) for part in HOST_ALONE)
    lost = max(0.0, idle * busy - besides)
    waits = evidence.body.get("sync", 0.0)
    remedies = fewer_launches(evidence)
    by = evidence.source
    if waits < limits.WORTH_NAMING["launch"]:
        return loss("launch", name, lost, seen, *remedies, by=by)
    lines = evidence.loop.lines
    rows = lines.rows(lines.mask("body", "sync"))[:3]
    seen += f"; for {waits:.0%} of its body the host waits in {rows[0].what}"
    return loss("launch", "sync", lost, seen, NO_SYNCHRONISING, *remedies, by=by, lines=rows)


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
    "lines",
)
explains("launches", "issuing_work")


@cause("loop-body", "host_work_in_the_loop")
def host_work(evidence: Evidence) -> Finding:
    """The host does something else, or issues work, while the device waits.

    Cause "host_work_in_the_loop", of a trace "issuing_work". It costs the share of the time in
    which the device waits for neither data nor a copy.
    """
    lost = evidence.other_share + evidence.launch_share
    seen = "of the time the device waits while the host does something but data and copies"
    name, remedies = "host_work_in_the_loop", (OUT_OF_THE_LOOP,)
    if evidence.known("trace") is not None:
        seen = "of the time the device waits while the host issues work: in operators, in calls of "
        seen += "the runtime, in Python between them"
        name, remedies = "issuing_work", fewer_launches(evidence)
    return loss("launch", name, lost, seen, *remedies, by=evidence.source)


explains("too-few-workers", "data_prepared_outside_a_DataLoader")


@cause("loop-body", "host_work")
def outside_pytorch(evidence: Evidence) -> Finding | None:
    """The host does what the profiler knows nothing of, while the device waits (a trace).

    Cause "data_prepared_outside_a_DataLoader", where a function's name says so (`PREPARES`); else
    "host_work". It costs the share of the time spent so.
    """
    lost = evidence.outside_share
    names = ", ".join(evidence.trace.outside_where)
    if not lost:
        return None
    seen = "of the time the device waits for host work outside of PyTorch"
    seen += f", most of it in {names}" if names else ""
    by = evidence.source
    if PREPARES.search(names):
        name = "data_prepared_outside_a_DataLoader"
        return loss("input", name, lost, seen, INTO_A_DATASET, by=by)
    return loss("host", "host_work", lost, seen, OUT_OF_THE_LOOP, by=by)
