"""The host is too slow for a device that waits for its next piece of work, or looks busy."""

from __future__ import annotations

import re
from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import cause
from labkit.diagnosis.causes.copies import lost_to_copies
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    ANOTHER_TRAINING,
    LESS_WAITING,
    NEIGHBOUR,
    ROUNDED,
    Finding,
    Measured,
    Remedy,
    remedy,
)
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.symptoms import explains
from labkit.diagnosis.watched_loop import HOST_ALONE
from labkit.diagnosis.witnesses import deciding
from labkit.spec import KNOBS

MOST_A_BATCH = int(KNOBS["batch_size"].high or 0)
# Of the cores, at the most, while a GPU trains (facebookresearch/spdl f43e287,
# docs/source/optimization_guide/noisy_neighbour.rst)
QUIET = "SPDL's authors advise at most 40% of the CPU while a GPU trains"
# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)

# -- fewer and larger kernels ----------------------------------------------------------------------


def may_compile(evidence: Evidence) -> bool:
    """Return whether a model is not compiled, and can be: not in a process with several cards.

    There a model is nn.DataParallel's: torch.compile does not reach its threads
    (pytorch/pytorch#94636), and a Trainer does not call it (huggingface/transformers#25152).
    """
    code = evidence.known("code") or LoopCode()
    is_compiled = evidence.knobs.get("compile") or code.is_compiled
    return evidence.compiles and not is_compiled and code.cards == 1


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
    """A model that may be compiled: with CUDA graphs where a GPU's steps are known to be alike.

    A graph's next replay overwrites the gradients that accumulation has to keep: PyTorch raises
    (pytorch/pytorch#169545). And each size of a batch has a graph of its own to be recorded.
    """
    if not may_compile(evidence):
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
    may_fuse = evidence.known("may_fuse")
    could = may_fuse is True or (may_fuse is None and not evidence.trainer)
    if not evidence.trains or not could or evidence.knobs.get("fused_optimizer"):
        return None
    return Remedy(
        "fused_optimizer",
        "Use a fused optimizer (fused_optimizer=True).",
        "launches",
        {"fused_optimizer": True},
    )


@remedy
def larger_batch(evidence: Evidence) -> Remedy | None:
    """A loop whose batch size is known, and may be four times as large; or words for a GPU's."""
    size = int(evidence.knobs.get("batch_size") or 0)
    larger = next((times * size for times in (4, 2) if times * size <= MOST_A_BATCH), 0)
    if larger:
        return Remedy(
            "larger_batch",
            f"Use a larger batch: batch_size={larger}.",
            "batch",
            {"batch_size": larger},
            cost="memory, and a different training: tune the learning rate",
            check=ANOTHER_TRAINING,
            price=3,
        )
    if size or evidence.kind != "gpu":
        return None
    return Remedy(
        "more_per_launch",
        "Give each kernel more to do: a larger batch, or longer sequences.",
        "launches",
        cost="memory",
        check=ANOTHER_TRAINING,
        price=3,
    )


FEWER_LAUNCHES = (more_per_call, compiled, fused_optimizer, larger_batch)

# -- between the steps -----------------------------------------------------------------------------

OUT_OF_THE_LOOP = Remedy(
    "out_of_the_loop",
    "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; where "
    "there is none, launch fewer and larger kernels.",
    "launches",
)


explains("launches", "issuing_work")


@cause("loop-body", "host_work_in_the_loop")
def host_work(evidence: Evidence) -> Finding:
    """The host does something else, or issues work, while the device waits.

    Cause "host_work_in_the_loop", of a trace "issuing_work". It costs the share of the time in
    which the device waits for neither data nor a copy.
    """
    lost = evidence.other_share + evidence.launch_share
    seen = "of the time the device waits while the host does something other than data and copies"
    name = "host_work_in_the_loop"
    remedies = (OUT_OF_THE_LOOP,)
    if evidence.known("trace") is not None:
        seen = (
            "of the time the device waits while the host issues work: in operators, in calls "
            "of the runtime, in Python between them"
        )
        name = "issuing_work"
        remedies = FEWER_LAUNCHES
    return Finding("launch", name, lost, (Measured(seen, lost, by=evidence.source),), remedies)


NOW_AND_THEN = Remedy(
    "find_what_runs_now_and_then",
    "Look for what runs now and then: garbage collection, recompiles, checkpoints.",
    "launches",
)


@cause("periodic", "pauses_inside_steps")
def pauses(evidence: Evidence) -> Finding | None:
    """Single steps compute far longer than an ordinary one.

    It is found where no sampled stacks tell what long steps do, of a device that was timed. It
    costs what steps of more than PAUSE ordinary ones take beyond an ordinary one with a batch of
    their size, and no more than the time for which a watched loop's device may have rested.
    """
    if evidence.body or evidence.launches_only:
        return None  # samples tell what long steps do; a host waits for all that it has queued
    lost = evidence.pause_share
    if evidence.known("loop") is not None:
        lost = min(lost, max(1 - evidence.card.certain_share, 0.0))
    seen = "of the time is lost to single steps that compute far longer than an ordinary one"
    measured = (Measured(seen, lost, by=evidence.source),)
    return Finding("launch", "pauses_inside_steps", lost, measured, (NOW_AND_THEN,))


IN_ANOTHER_PROCESS = Remedy(
    "in_another_process",
    "Take it out of the loop, or do it rarely or in another process: logging, checkpoints, "
    "evaluation, preparing data; with_stack=True records where it is.",
    "lines",
)
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Do it in a Dataset, and read that with a DataLoader that has workers.",
    "workers",
    check=LESS_WAITING,
)


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
    measured = (Measured(seen, lost, by=evidence.source),)
    if PREPARES.search(names):
        name = "data_prepared_outside_a_DataLoader"
        return Finding("input", name, lost, measured, (INTO_A_DATASET,))
    return Finding("host", "host_work", lost, measured, (IN_ANOTHER_PROCESS,))


OVERLAP_EXCHANGE = Remedy(
    "overlap_exchange",
    "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch.",
    "exchange",
)


@cause("ranks", "exposed_collectives")
def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace).

    It costs the share of the time in which nothing else runs.
    """
    lost = evidence.communication_share
    trace = evidence.trace
    if not lost:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    measured = [Measured(seen, lost, by=evidence.source)]
    late = trace.known("late_rank")
    remedies = (OVERLAP_EXCHANGE,)
    if late is not None:
        measured.append(Measured(trace.late_said))
        look = f"Look into the trace of rank {late} first: the others wait for it."
        remedies = (Remedy("look_into_the_late_trace", look, "ranks"),)
    return Finding(
        "communication", "exposed_collectives", lost, tuple(measured), remedies, rank=late
    )


# -- within the step -------------------------------------------------------------------------------


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
    measured = [Measured(seen, lost, by=evidence.inside)]
    fixed = xray.known("fixed_share")
    if fixed is not None:
        measured.append(Measured("of a step does not grow with the batch", fixed))
    name = "Python_and_tiny_operators"
    return Finding("launch", name, lost, tuple(measured), FEWER_LAUNCHES)


@remedy
def quieter(evidence: Evidence) -> Remedy:
    """Cores that are full: of this run's own workers, or of other programs."""
    use = evidence.use
    if (use.others or 0.0) > (use.own or 0.0):
        alone = f"Stop the other programs, or give this one cores of its own: {QUIET}."
        return Remedy("stop_other_programs", alone, "workers")
    fewer = evidence.known("advised")
    is_fewer = fewer is not None and fewer < (evidence.known("num_workers") or 0)
    how = f" num_workers={fewer} should do." if is_fewer else ""
    return Remedy(
        "fewer_workers_or_cheaper_items",
        f"Use fewer workers, or cheaper items: {QUIET}.{how}",
        "workers",
        {"num_workers": fewer} if is_fewer else {},
    )


@cause("neighbour", NEIGHBOUR)
def noisy_neighbour(evidence: Evidence) -> Finding | None:
    """The cores are full, so that the threads that launch a GPU's kernels stand in line for one.

    A device that still has work in its queue does not notice: it costs the share of the time these
    threads had no core, times the share in which the queue could run dry.
    """
    launches = evidence.card.launches
    if not launches.in_line_share:
        return None
    dry = 1 - evidence.card.ahead_share
    use = evidence.use
    waited = "of the time the threads that launch kernels had no core"
    measured = [
        Measured(waited, launches.in_line_share, by="time in line, Linux's schedstat"),
        Measured("of the time the GPU's queue could run dry", dry),
    ]
    if use.own is not None:
        used = f"{use.own:.1f} of {use.cores} cores"
        workers = evidence.known("num_workers") or 0
        measured.append(Measured(f"this run used {used} with {workers} workers"))
        measured.append(Measured("were used by other programs", use.others or 0.0, "cores"))
    began = f"a step's compute began {launches.queued_ms:.1f} ms after it was issued"
    measured.append(Measured(began))
    lost = launches.in_line_share * dry
    return Finding("launch", NEIGHBOUR, lost, tuple(measured), (quieter,))


@cause("launches", "gaps_between_kernels")
def gaps_between_kernels(evidence: Evidence) -> Finding | None:
    """A GPU waits for launches inside the step: so its kernels against its events.

    It costs the share of the compute, as the run's events have it, in which the x-ray saw no
    kernel.
    """
    kernel_us = evidence.kernels.kernel_us
    compute_us = evidence.compute_us
    if evidence.kind != "gpu" or not compute_us or evidence.known("trace") is not None:
        return None
    lost = evidence.gap_share * evidence.compute_share
    seen = (
        "of the time no kernel runs inside the step's compute: kernels take "
        f"{kernel_us / 1e3:.1f} ms of {compute_us / 1e3:.1f} ms"
    )
    measured = (Measured(seen, lost, by="x-ray against events"),)
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
    SMS_REST or POWER_RESTS; it costs what the instrument leaves of the busy time, without what the
    body's other causes find.
    """
    witness = deciding(evidence.card.witnesses)
    if witness is None or witness.works:
        return None
    busy = evidence.compute_share
    loop = evidence.known("loop")
    # The host's work alone and copies are findings of their own
    besides = sum(evidence.body.get(part, 0.0) for part in HOST_ALONE)
    if loop:
        besides += lost_to_copies(evidence)[0] / max(busy, 1e-9)
    lost = max(0.0, 1 - witness.share - besides) * busy
    seen = (
        f"of the time the device is busy by its events, but {witness.said}: gaps between "
        "kernels, or kernels too small for it"
    )
    tells = "an x-ray (xray=True)" if evidence.could_look else "a trace of torch.profiler"
    measured = (
        Measured(seen, busy, by=evidence.source),
        Measured(f"{tells} tells gaps from small kernels"),
    )
    finding = Finding("launch", "gaps_or_small_kernels", lost, measured, FEWER_LAUNCHES)
    waits = loop.lines.body.get("sync", 0.0) if loop else 0.0
    if waits < limits.WORTH_NAMING["launch"]:
        return finding
    lines = loop.lines.rows(loop.lines.of_part("sync"))[:3]
    return replace(
        finding,
        cause="sync",
        measured=(measured[0], Measured(f"of the body the host waits in {lines[0].what}", waits)),
        lines=lines,
        remedies=(NO_SYNCHRONISING, *FEWER_LAUNCHES),
    )
