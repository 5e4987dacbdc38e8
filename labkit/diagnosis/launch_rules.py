"""Rules for a host that is too slow for a device that looks busy."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis.body_cost import host_alone_share, lost_in_loops, lost_to_copies
from labkit.diagnosis.body_remedies import NO_SYNCHRONISING
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import NEIGHBOUR, Finding, Measured, costs
from labkit.diagnosis.line_work import synchronises
from labkit.diagnosis.loop_rules import SCHEDSTAT
from labkit.diagnosis.witnesses import deciding


def tiny_operators(evidence: Evidence) -> Finding | None:
    """Python and the dispatch of small operators take the time (a CPU).

    Cause "Python_and_tiny_operators". It costs the share of the x-ray's steps between operators and
    in those of under 10 µs, times the share of the time spent on compute.
    """
    xray = evidence.xray
    if evidence.kind != "cpu" or xray is None:
        return None
    # The profiler's own cost (1 to 2 µs an operator) is in it: the threshold was calibrated so
    lost = evidence.compute_share * xray.share(xray.gap_us + xray.tiny_us)
    seen = (
        "of the time, inside the compute, goes to Python and to dispatching "
        f"{xray.tiny_ops:g} operators of under 10 µs per step"
    )
    measured = [Measured(seen, lost, by=evidence.inside)]
    if xray.fixed_share is not None:
        measured.append(Measured("of a step does not grow with the batch", xray.fixed_share))
    return Finding(
        "launch", "Python_and_tiny_operators", lost, tuple(measured), cures.FEWER_LAUNCHES
    )


def noisy_neighbour(evidence: Evidence) -> Finding | None:
    """The cores are full, so that the threads that launch a GPU's kernels stand in line for one.

    Cause "neighbour". A device that still has work in its queue does not notice: it costs the share
    of the time these threads had no core, times the share in which the queue could run dry.
    """
    launches = evidence.card.launches
    if launches is None or not launches.in_line_share:
        return None
    dry = 1 - evidence.card.ahead_share
    use = evidence.use
    others = use.others or 0.0
    waited = "of the time the threads that launch kernels had no core"
    measured = [
        Measured(waited, launches.in_line_share, by=SCHEDSTAT),
        Measured("of the time the GPU's queue could run dry", dry),
    ]
    if use.own is not None:
        used = f"{use.own:.1f} of {use.cores} cores"
        measured.append(Measured(f"this run used {used} with {evidence.num_workers or 0} workers"))
        measured.append(Measured("were used by other programs", others, unit="cores"))
    began = f"a step's compute began {launches.queued_ms:.1f} ms after it was issued"
    measured.append(Measured(began))
    return Finding(
        "launch",
        NEIGHBOUR,
        launches.in_line_share * dry,
        tuple(measured),
        (cures.ALONE if others > (use.own or 0.0) else cures.QUIETER,),
    )


def gaps_between_kernels(evidence: Evidence) -> Finding | None:
    """A GPU waits for launches inside the step: so its kernels against its events.

    Cause "gaps_between_kernels". It costs the share of the compute, as the run's events have it, in
    which the x-ray saw no kernel.
    """
    kernels = evidence.kernels
    if evidence.kind != "gpu" or kernels is None or not evidence.compute_us or evidence.trace:
        return None
    lost = evidence.gap_share * evidence.compute_share
    seen = (
        "of the time no kernel runs inside the step's compute: kernels take "
        f"{kernels.kernel_us / 1e3:.1f} ms of {evidence.compute_us / 1e3:.1f} ms"
    )
    by = "x-ray against events"
    return costs("launch", "gaps_between_kernels", lost, seen, by, *cures.FEWER_LAUNCHES)


def idle_while_busy(evidence: Evidence) -> Finding | None:
    """A second instrument says that a GPU, busy by its events, did little.

    Cause "gaps_or_small_kernels", or "sync" where the body's lines wait for the device. It is found
    where the instrument (the SMs' activity, power) reads less than SMS_REST or POWER_RESTS; it
    costs what the instrument leaves of the busy time, without what the body's other rules found.
    """
    witness = deciding(evidence.card.witnesses)
    if witness is None or witness.works:
        return None
    busy = evidence.compute_share
    # Copies and a loop within the step are findings of their own, as is the host's work alone
    besides = (lost_to_copies(evidence) + lost_in_loops(evidence)) / max(busy, 1e-9)
    besides += host_alone_share(evidence)
    seen = (
        f"of the time the device is busy by its events, but {witness.said}: gaps between "
        "kernels, or kernels too small for it"
    )
    tells = "an x-ray (xray=True)" if evidence.could_look else "a trace of torch.profiler"
    found = Finding(
        "launch",
        "gaps_or_small_kernels",
        max(0.0, 1 - witness.share - besides) * busy,
        (
            Measured(seen, busy, by=evidence.source),
            Measured(f"{tells} tells gaps from small kernels"),
        ),
        cures.FEWER_LAUNCHES,
    )
    waits = synchronises(evidence.loop.lines) if evidence.loop else None
    if waits is None:
        return found
    part, lines = waits
    blamed = Measured(f"of the body the host waits in {lines[0].what}", part)
    measured = (found.measured[0], blamed)
    remedies = (NO_SYNCHRONISING, *found.remedies)
    return replace(found, cause="sync", measured=measured, lines=lines, remedies=remedies)
