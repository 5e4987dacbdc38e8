"""The rules of the diagnosis: each computes what one cause of lost device time costs.

However little; `rank` decides which losses are worth a name. A new rule is a function that takes
the `Evidence` and returns a `Finding` or None, and a name in `RULES`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from labkit.diagnosis import body_rules, loop_rules, worker_remedies
from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, bound, costs
from labkit.diagnosis.line_work import synchronises
from labkit.diagnosis.witnesses import deciding
from labkit.diagnosis.worker_rules import (
    memory_growth,
    what_passes_and_lines_show,
    why_workers_are_late,
)
from labkit.diagnosis.worker_words import costliest_step

NEIGHBOUR = "neighbour"  # what fills the cores, so that launches come late
# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)

# -- the device has nothing to compute ------------------------------------------------------------


def waiting_for_data(evidence: Evidence) -> Finding | None:
    """The loop waits for its next batch; what the workers or the lines show is the cause."""
    found = why_workers_are_late(evidence) or what_passes_and_lines_show(evidence)
    if found is None:
        cause = "stalls" if evidence.stalls else "waiting for data"
        found = Finding("input", cause, remedies=feeding.FEED, lines=evidence.loading_lines)
    waits = [
        Measured(
            "of the time is spent waiting for the next batch",
            evidence.wait_share,
            by=evidence.source,
        )
    ]
    if evidence.stalls:
        worst = "of that falls into a tenth of the steps: stalls"
        waits.append(Measured(worst, evidence.stall_share))
    if evidence.headroom is not None:
        perfect = "the throughput is what a perfect loader would give"
        waits.append(Measured(perfect, evidence.headroom[0], "times", "replayed batches"))
    measured = (*waits, *found.measured)
    return replace(found, lost_share=evidence.wait_share, measured=measured)


def cores_taken_by_workers(evidence: Evidence) -> Finding | None:
    """Loader workers compute on the cores that a model on the CPU needs."""
    if evidence.stolen_by_workers is None:
        return None
    count = evidence.num_workers or 0
    advised = evidence.advised
    fewer = advised is not None and advised.num_workers < count
    seen = "of the time a loader worker had the core that the model's thread needed, with "
    seen += f"{count} workers on {evidence.use.cores} cores"
    by = "thread CPU time against wall time"
    if evidence.loop is not None:
        quick_ms = (evidence.quick_compute_us or 0.0) / 1e3
        mean_ms = (evidence.compute_us or 0.0) / 1e3
        by = f"the quickest steps compute for {quick_ms:.1f} ms, the average one for {mean_ms:.1f}"
    costliest = costliest_step(evidence.computing_lines)
    cheaper = (feeding.DECODE_SMALLER, worker_remedies.FEWER_THREADS, feeding.LEANER_ITEMS)
    return Finding(
        name="input",
        cause="workers take the device's cores",
        lost_share=evidence.stolen_by_workers,
        measured=(Measured(seen, evidence.stolen_by_workers, by=by), *costliest),
        remedies=feeding.FEED if fewer else cheaper,
    )


def copies(evidence: Evidence) -> Finding | None:
    """The device waits for a copy from the host."""
    lost = evidence.copy_share
    seen = "of the time the device waits for a copy"
    remedies = (cures.ONE_BLOCK, cures.PINNED, cures.OVERLAPPED)
    found = costs("transfer", "copies", lost, seen, evidence.source, *remedies)
    return replace(found, at_most=bound(lost))


def host_work(evidence: Evidence) -> Finding | None:
    """The host does something else, or issues work, while the device waits."""
    lost = evidence.other_share + evidence.launch_share
    cause = "host work in the loop"
    seen = "of the time the device waits while the host does something other than data and copies"
    remedies = (cures.OUT_OF_THE_LOOP,)
    if evidence.from_trace:
        cause = "issuing work"
        seen = "of the time the device waits while the host issues work: in operators, in calls "
        seen += "of the runtime, in Python between them"
        remedies = cures.FEWER_LAUNCHES
    return costs("launch", cause, lost, seen, evidence.source, *remedies)


def pauses(evidence: Evidence) -> Finding | None:
    """Single steps compute far longer than an ordinary one."""
    if evidence.body:  # samples tell what long steps do
        return None
    seen = "of the time is lost to single steps that compute far longer than an ordinary one"
    lost = evidence.pause_share
    cause = "pauses inside steps"
    return costs("launch", cause, lost, seen, evidence.source, cures.NOW_AND_THEN)


def outside_pytorch(evidence: Evidence) -> Finding | None:
    """The host does what the profiler knows nothing of, while the device waits (a trace)."""
    lost = evidence.outside_share
    if not lost:
        return None
    names = ", ".join(evidence.outside_where)
    seen = "of the time the device waits for host work outside of PyTorch"
    seen += f", most of it in {names}" if names else ""
    by = evidence.source
    if PREPARES.search(names):
        cause = "data prepared outside a DataLoader"
        return costs("input", cause, lost, seen, by, worker_remedies.INTO_A_DATASET)
    return costs("host", "host work", lost, seen, by, cures.IN_ANOTHER_PROCESS)


def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace)."""
    lost = evidence.communication_share
    if not lost:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    measured = [Measured(seen, lost, by=evidence.source)]
    if evidence.late_rank is not None:
        measured.append(Measured(evidence.late_said))
    return Finding(
        name="communication",
        cause="exposed collectives",
        lost_share=lost,
        measured=tuple(measured),
        remedies=(cures.OVERLAP_EXCHANGE if evidence.late_rank is None else cures.LATE_TRACE,),
        rank=evidence.late_rank,
    )


# -- the host is too slow for a device that looks busy --------------------------------------------


def tiny_operators(evidence: Evidence) -> Finding | None:
    """Python and the dispatch of small operators take the time (a CPU)."""
    xray = evidence.xray
    if evidence.kind != "cpu" or xray is None:
        return None
    lost = evidence.compute_share * evidence.dispatch_share
    seen = "of the time, inside the compute, goes to Python and to dispatching "
    seen += f"{xray.tiny_ops:g} operators of under 10 µs per step"
    measured = [Measured(seen, lost, by=evidence.inside)]
    if xray.fixed_share is not None:
        measured.append(Measured("of a step does not grow with the batch", xray.fixed_share))
    return Finding(
        "launch", "Python and tiny operators", lost, tuple(measured), cures.FEWER_LAUNCHES
    )


def noisy_neighbour(evidence: Evidence) -> Finding | None:
    """The cores are full, so that the threads that launch a GPU's kernels stand in line for one.

    A device that still has work in its queue does not notice.
    """
    launches = evidence.launches
    if launches is None or not launches.in_line_share:
        return None
    dry = 1 - evidence.ahead_share
    use = evidence.use
    others = use.others or 0.0
    waited = "of the time the threads that launch kernels had no core"
    measured = [
        Measured(waited, launches.in_line_share, by=loop_rules.SCHEDSTAT),
        Measured("of the time the GPU's queue could run dry", dry),
    ]
    if use.own is not None:
        used = f"{use.own:.1f} of {use.cores} cores"
        measured.append(Measured(f"this run used {used} with {evidence.num_workers or 0} workers"))
        measured.append(Measured("were used by other programs", others, unit="cores"))
    began = f"a step's compute began {launches.queued_ms:.1f} ms after it was issued"
    measured.append(Measured(began))
    return Finding(
        name="launch",
        cause=NEIGHBOUR,
        lost_share=launches.in_line_share * dry,
        measured=tuple(measured),
        remedies=(cures.ALONE if others > (use.own or 0.0) else cures.QUIETER,),
    )


def gaps_between_kernels(evidence: Evidence) -> Finding | None:
    """A GPU waits for launches inside the step: so its kernels against its events."""
    kernels = evidence.kernels
    if evidence.kind != "gpu" or kernels is None or not evidence.compute_us or evidence.from_trace:
        return None
    lost = evidence.gap_share * evidence.compute_share
    seen = "of the time no kernel runs inside the step's compute: kernels take "
    seen += f"{kernels.kernel_us / 1e3:.1f} ms of {evidence.compute_us / 1e3:.1f} ms"
    by = "x-ray against events"
    return costs("launch", "gaps between kernels", lost, seen, by, *cures.FEWER_LAUNCHES)


def idle_while_busy(evidence: Evidence) -> Finding | None:
    """A second instrument says that a GPU, busy by its events, did little."""
    witness = deciding(evidence.witnesses)
    if witness is None or witness.works:
        return None
    busy = evidence.compute_share
    # what the loop's body does besides training is a finding of its own
    parts = ("python", "logging", "waiting", "loader")
    besides = sum(evidence.body.get(part, 0.0) for part in parts)
    others = (body_rules.own_optimizer(evidence), body_rules.copies_in_the_body(evidence))
    besides += sum(each.lost_share for each in others if each) / max(busy, 1e-9)
    seen = f"of the time the device is busy by its events, but {witness.said}: gaps between "
    seen += "kernels, or kernels too small for it"
    found = Finding(
        name="launch",
        cause="gaps or small kernels",
        lost_share=max(0.0, 1 - witness.share - besides) * busy,
        measured=(
            Measured(seen, busy, by=evidence.source),
            Measured("an x-ray (xray=True) tells gaps from small kernels"),
        ),
        remedies=cures.FEWER_LAUNCHES,
    )
    stops = synchronises(evidence.loop.lines) if evidence.loop else None
    if stops is None:
        return found
    part, lines = stops
    blamed = Measured(f"of the body the host waits in {lines[0].what}", part)
    measured = (found.measured[0], blamed)
    remedies = (cures.NO_SYNCHRONISING, *found.remedies)
    return replace(found, cause="sync", measured=measured, lines=lines, remedies=remedies)


# -- the device computes, but not as it could -----------------------------------------------------


def full_precision(evidence: Evidence) -> Finding | None:
    """The heavy math runs in FP32: in BF16 this run's own step was faster."""
    speedup = evidence.xray.bf16_speedup if evidence.xray else None
    if not speedup or speedup < 0:
        return None
    lost = max(0.0, 1 - 1 / speedup) * evidence.compute_share
    seen = f"of the time is the cost of FP32: in BF16 the same compute took 1/{speedup:.2f} as long"
    return costs("precision", "FP32", lost, seen, "measured on this run's own step", cures.BF16)


def no_tensor_cores(evidence: Evidence) -> Finding | None:
    """Kernels that could run on Tensor Cores do not."""
    kernels = evidence.kernels
    if kernels is None or kernels.eligible_share is None or evidence.formats == ():
        return None
    if evidence.xray and evidence.xray.bf16_speedup is not None:
        return None  # measured: better than told by names
    idle = max(0.0, kernels.eligible_share - kernels.tensor_core_share)
    lost = idle * limits.HALF_SAVED * evidence.compute_share
    can = "of kernel time is in operators that can use Tensor Cores"
    costs = f"of the time is what that costs at {limits.TENSOR_CORE_GAIN:g}x, the low end of "
    return Finding(
        name="precision",
        cause="no Tensor Cores",
        lost_share=lost,
        measured=(
            Measured(can, kernels.eligible_share, by=evidence.inside),
            Measured("of it does", kernels.tensor_core_share),
            Measured(f"{costs}published gains", lost),
        ),
        remedies=(cures.SIXTEEN_BITS if evidence.formats else cures.SOME_16_BITS,),
    )


def unaligned_sizes(evidence: Evidence) -> Finding | None:
    """Tensor Cores run products of sizes that they have to pad."""
    odd = evidence.kernels.unaligned_share if evidence.kernels else None
    if odd is None:
        return None
    lost = odd * limits.HALF_SAVED * evidence.compute_share
    seen = "of kernel time is in products of sizes that are not a multiple of 8"
    costs = f"of the time is what that costs at {limits.TENSOR_CORE_GAIN:g}x"
    measured = (Measured(seen, odd, by=evidence.inside), Measured(costs, lost))
    return Finding("precision", "unaligned sizes", lost, measured, (cures.ALIGNED,))


def elementwise_chains(evidence: Evidence) -> Finding | None:
    """Chains of elementwise operators, each of which reads and writes all of its data (a CPU)."""
    xray = evidence.xray
    if evidence.kind != "cpu" or xray is None:
        return None
    lost = xray.share(xray.fusible_us) * evidence.compute_share
    seen = "of the time goes to passes over memory that one fused pass would save"
    takes = Measured("of the compute is elementwise operators", xray.share(xray.elementwise_us))
    measured = (Measured(seen, lost, by=evidence.inside), takes)
    remedies = (cures.FUSE, cures.FUSED_UPDATE)
    return Finding("memory_bandwidth", "elementwise chains", lost, measured, remedies)


def elementwise_kernels(evidence: Evidence) -> Finding | None:
    """The same on a GPU, whose kernels are known by their names alone."""
    kernels = evidence.kernels
    if evidence.kind != "gpu" or kernels is None or kernels.moving_share is None:
        return None
    running = 1 - evidence.gap_share  # of the compute
    lost = kernels.moving_share * limits.FUSION_SAVES * running * evidence.compute_share
    seen = "of kernel time is in elementwise kernels, which only move data"
    saves = Measured("of the time is what one pass instead of two would save", lost)
    measured = (Measured(seen, kernels.moving_share, by=evidence.inside), saves)
    remedies = (cures.FUSE, cures.FUSED_UPDATE)
    return Finding("memory_bandwidth", "elementwise kernels", lost, measured, remedies)


def padding(evidence: Evidence) -> Finding | None:
    """Batches of text hold filler tokens, on which the device computes for nothing."""
    if not evidence.padding_share:
        return None
    lost = evidence.padding_share * evidence.compute_share
    lengths = f"lengths of the sequences, {evidence.source}"
    return Finding(
        name="compute",
        cause="padding",
        lost_share=lost,
        measured=(
            Measured("of the tokens are padding", evidence.padding_share, by=lengths),
            Measured("of the time is spent on it", lost),
        ),
        remedies=(cures.PAD_LESS,),
    )


def held_down(evidence: Evidence) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be."""
    heat = evidence.heat
    if heat is None or heat.share < limits.HELD_DOWN:
        return None
    seen = "of the readings show heat or a power brake holding the card's clock down"
    measured = [Measured(seen, heat.share, by="NVML's clock reasons")]
    if heat.slower is not None:
        measured.append(Measured("of its highest clock here is left", 1 - heat.slower))
    lost = heat.share * (heat.slower or 0.0) * evidence.compute_share
    return Finding("compute", "throttle", lost, tuple(measured), (cures.COOLER,))


RULES = (
    waiting_for_data,
    cores_taken_by_workers,
    copies,
    host_work,
    pauses,
    *body_rules.IN_THE_BODY,
    body_rules.copies_in_the_body,
    body_rules.another_loader,
    body_rules.own_optimizer,
    loop_rules.elsewhere,
    loop_rules.longer_and_longer,
    loop_rules.too_many_threads,
    outside_pytorch,
    collectives,
    tiny_operators,
    noisy_neighbour,
    gaps_between_kernels,
    idle_while_busy,
    full_precision,
    no_tensor_cores,
    unaligned_sizes,
    elementwise_chains,
    elementwise_kernels,
    padding,
)
# What is said whatever it costs
WARNINGS = (loop_rules.kept, held_down, memory_growth, loop_rules.double_precision)
