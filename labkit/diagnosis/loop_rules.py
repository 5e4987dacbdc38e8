"""Rules for somebody's own loop: how its steps grow, what it keeps, and what is around it."""

from __future__ import annotations

from labkit.diagnosis import body_remedies as cures
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.device_remedies import SINGLE_PRECISION
from labkit.diagnosis.evidence import Evidence, LoopGrowth
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.watched_loop import Drift
from labkit.watching.switches import OF_CHANGING_SIZES, SWITCHES

DOUBLE = "float64"
SCHEDSTAT = "time in line, Linux's schedstat"


def drift_of(evidence: Evidence) -> Drift | None:
    """Return how a watched loop's steps grow; None where the machine may have slowed instead."""
    drift = evidence.loop.drift if evidence.loop else None
    if drift is None or kept(evidence) is not None:
        return drift
    if evidence.growth.late_gib is not None:
        return None if evidence.is_disturbed else drift
    is_hot = evidence.card.heat is not None and evidence.card.heat.share >= limits.HELD_DOWN
    slowed = evidence.is_disturbed or is_hot or drift.growth < limits.DRIFT_ALONE
    return None if slowed else drift


def longer_and_longer(evidence: Evidence) -> Finding | None:
    """A watched loop's steps take longer and longer.

    Cause "drift", where the last fifth of the steps takes DRIFT times the first; DRIFT_ALONE times
    where neither memory nor a variable was seen to grow. Batches that grow as much explain it, and
    so may other programs or heat. It costs what the later steps take beyond the first.
    """
    drift = drift_of(evidence)
    if evidence.loop is None or drift is None:
        return None
    lines = evidence.loop.lines.worst(drift.mask)
    first = "as long as the first"
    last = "the last steps take"
    measured = [Measured(first, drift.growth, "times", evidence.source, last)]
    if lines:
        measured.append(Measured(f"what grows is {lines[0].what}"))
    growth = evidence.growth
    remedies = (cures.WATCH_SIZES,)
    grown = kept(evidence)
    if grown:
        measured += grown.measured
        remedies = grown.remedies
        lines = grown.lines + lines
    elif growth.late_gib is not None:
        measured.append(_risen(growth))
        remedies = (cures.KEEP_LESS,)
    return Finding("host", "drift", drift.share, tuple(measured), remedies, lines)


def left_on(evidence: Evidence) -> Finding | None:
    """A debugging aid is on for the whole process: anomaly mode, a profiler, a debugger.

    Cause "switch", of those in `SWITCHES`. What it costs is not known.
    """
    return _switches(evidence, debugs=True)


def set_on_purpose(evidence: Evidence) -> Finding | None:
    """A switch that costs time is on, which the user may want: deterministic algorithms.

    Cause "switch" as well.
    """
    return _switches(evidence, debugs=False)


def _switches(evidence: Evidence, debugs: bool) -> Finding | None:
    on = [
        (name, SWITCHES[name])
        for name in evidence.switches
        if name in SWITCHES and SWITCHES[name].debugs == debugs
        if name != OF_CHANGING_SIZES or evidence.batch.sizes > limits.FEW_SIZES
    ]
    if not on:
        return None
    said = tuple(Measured(f"{name} is on: it {switch.does}") for name, switch in on)
    lines = "; ".join(switch.delete for _, switch in on)
    told = "What it costs shows when it is gone: run again."
    remedy = Remedy("delete_switch", f"Delete {lines}. {told}", "lines")
    return Finding("host", "switch", measured=said, remedies=(remedy,))


def double_precision(evidence: Evidence) -> Finding | None:
    """A watched loop trains weights of 64 bits, as NumPy's arrays have by default.

    Cause "float64", where the device computes for BUSY of the time. What it costs is not known.
    """
    if evidence.weights_dtype != DOUBLE or evidence.compute_share < limits.BUSY:
        return None
    batches = " and the batches" if evidence.batch.dtype == DOUBLE else ""
    measured = [
        Measured("of the time the device computes", evidence.compute_share, by=evidence.source),
        Measured(f"the weights{batches} are float64"),
    ]
    remedy = SINGLE_PRECISION
    return Finding("precision", DOUBLE, measured=tuple(measured), remedies=(remedy,))


def too_many_threads(evidence: Evidence) -> Finding | None:
    """Torch computes with more threads than there are cores: each waits for the others.

    Cause "threads", where CROWDED threads for each core had work, and no other program takes part.
    It costs the compute's share that these cores would not need.
    """
    use = evidence.use
    cores = use.cores or 0
    threads = evidence.threads or 0
    wanted = (use.own or 0.0) + (use.in_line or 0.0)
    crowded = threads > cores > 0 and wanted > limits.CROWDED * cores
    if not crowded or use.is_shared:
        return None
    lost = (1 - cores / wanted) * evidence.compute_share
    seen = (
        f"torch computes with {threads} threads on {cores} cores: on average {wanted:.1f} "
        "threads of this program had work"
    )
    measured = (Measured(seen, by=SCHEDSTAT),)
    return Finding("host", "threads", lost, measured, (cures.THREADS,))


def _risen(growth: LoopGrowth) -> Measured:
    """Return the memory that rose, in words."""
    held = f"{growth.early_gib:.2g} to {growth.late_gib:.2g} GiB"
    return Measured(f"the program's memory rose from {held}")


def kept(evidence: Evidence) -> Finding | None:
    """Something grows from step to step: it may cost no time, but ends in want of memory.

    Cause "drift", where a variable grows that holds graphs of tensors, or BLAMED of the memory that
    the program gained.
    """
    growth = evidence.growth
    rose = growth.late_gib is not None
    gained = (growth.late_gib or 0.0) - (growth.early_gib or 0.0)
    least = limits.BLAMED * gained * 2**30  # bytes that explain why the memory rose
    graphs = [each for each in growth.variables if each["graph"]]
    large = [each for each in growth.variables if rose and (each.get("bytes") or 0) >= least]
    grown = graphs or large
    if not grown:
        return None
    line = max(grown, key=lambda each: (each.get("bytes") or 0, each["after"]))
    name = line["name"]
    where = Line(line["file"], line["line"], line["function"], 0.0, "body", "python", name)
    seen = f"`{name}` in {where.address} grew from {line['before']} to {line['after']} while the "
    measured = [Measured(f"{seen}loop was watched")]
    if rose:
        measured.append(_risen(growth))
    remedy = cures.KEEP_LESS
    if graphs:
        measured.append(Measured("it keeps tensors with the graphs that made them"))
        remedy = cures.KEEP_NUMBERS
    return Finding("host", "drift", measured=tuple(measured), remedies=(remedy,), lines=(where,))
