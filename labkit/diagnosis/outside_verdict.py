"""What CPU use and GPU counters, seen from outside a script, can tell about its bottleneck.

Nobody outside knows when the loop waits: so confidence is low or medium, or it is `unsure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.diagnosis.evidence import Evidence, OutsideEvidence
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.wording import worded

if TYPE_CHECKING:
    from labkit.bench.outside import CardReading, Sample

START_SHARE = 0.2  # of the script is start-up: imports, the model, workers,
START_S = 3.0  # or these seconds, if they are more
MIN_SAMPLES = 8  # two seconds
RUNS = 0.7  # share of samples in which a process that hardly ever waits has work
WAITS = 0.4  # and one that waits for more than half of the time
FOREIGN = 0.5  # cores of other programs that are worth a word
BUSY_GPU = 0.8  # NVML's share of time with a kernel running; see notebook 02 on what it hides
GROWN_GIB = 0.2  # memory that a script's own CUDA context takes at the least
SETTLE = "`for batch in lk.watch(loader):` in the script would settle it."
FEED = Remedy(
    "feed_from_outside",
    "Give the DataLoader more workers, or do less work per item; `labkit tune` says how many. See "
    "notebook 03, section 1. Workers, on real work.",
)
CHEAPER_COMPUTE = Remedy(
    "cheaper_compute", "Notebooks 04, 05 and 07 make the device's own work cheaper."
)
MODEL = Remedy("model", "The model is the limit on this CPU.")
LAUNCH_LESS = Remedy(
    "launch_less",
    "Launch fewer and larger kernels. See notebook 07, section 3. Hundreds of tiny kernels.",
)

# -- the rules, in this order; the first that finds its own speaks ---------------------------------


def too_short(seen: OutsideEvidence) -> Finding | None:
    """The script ended before it could be looked at."""
    return Finding("unsure", "too short") if seen.samples < MIN_SAMPLES else None


def busy_gpu(seen: OutsideEvidence) -> Finding | None:
    """A GPU hardly ever rests."""
    busy = seen.gpu_share is not None and seen.gpu_share >= BUSY_GPU
    return Finding("compute", "busy_gpu", remedies=(CHEAPER_COMPUTE,)) if busy else None


def busy_workers(seen: OutsideEvidence) -> Finding | None:
    """The workers have work all the time, and what waits for them does not."""
    rests = seen.gpu_share is not None or seen.main_share < WAITS
    busy = seen.workers and seen.workers_share >= RUNS and rests
    return Finding("input", "busy_workers", remedies=(FEED,)) if busy else None


def all_wait(seen: OutsideEvidence) -> Finding | None:
    """Nobody has work: they wait for storage, a network or a sleep."""
    waits = seen.main_share < WAITS
    if seen.gpu_share is not None:
        waits = waits and seen.workers_share < WAITS
    return Finding("input", "all_wait", remedies=(FEED,)) if waits else None


def busy_main(seen: OutsideEvidence) -> Finding | None:
    """The main process has work, and its workers do not."""
    if not seen.workers or seen.main_share < RUNS:
        return None
    if seen.gpu_share is not None:
        return Finding("launch", "busy_main", remedies=(LAUNCH_LESS,))
    model = seen.workers_share < WAITS
    return Finding("compute", "busy_main", remedies=(MODEL,)) if model else None


def idle_gpu(seen: OutsideEvidence) -> Finding | None:
    """A GPU rests while its only process is busy with data, or with issuing work."""
    idle = seen.gpu_share is not None
    return Finding("input", "idle_gpu", remedies=(FEED,)) if idle else None


def alike(seen: OutsideEvidence) -> Finding:
    """Preparing data and training look the same from outside."""
    return Finding("unsure", "alike")


RULES = (too_short, busy_gpu, busy_workers, all_wait, busy_main, idle_gpu, alike)
SURE = {"busy_gpu": "medium", "busy_workers": "medium", "too short": "none", "alike": "none"}
SAID = {
    "too short": "the script ended too soon to tell",
    "busy_workers": "the script waited for its workers",
    "all_wait": "it waited, for storage, a network or a sleep",
    "idle_gpu": "it was busy with data, or with issuing work",
    "alike": "preparing data and training look the same from outside",
}


def judge(samples: Sequence[Sample]) -> dict[str, Any]:
    """Name the bottleneck as far as the samples of `labkit.bench.telemetry` reach.

    The confidence is "low", "medium" or "none"; with it come the means behind it: cores used, and
    shares of time in which the script and its workers had work.
    """
    evidence = of_samples(samples)
    seen = evidence.outside or OutsideEvidence()
    found = next(filter(None, (rule(seen) for rule in RULES)))
    measured = _measured(seen) if seen.samples >= MIN_SAMPLES else ()
    reason = (Measured(SAID[found.cause]),) if found.cause in SAID else ()
    found = worded(replace(found, measured=(*measured, *reason)), evidence)
    numbers = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(seen).items()
    }
    return {
        "bottleneck": found.name,
        "confidence": SURE.get(found.cause, "low"),
        "evidence": found.evidence,
        "advice": f"{found.advice} {SETTLE}".strip(),
        **numbers,
    }


def _measured(seen: OutsideEvidence) -> tuple[Measured, ...]:
    gpu = Measured("no GPU in use")
    if seen.gpu_share is not None:
        gpu = Measured("of the time NVML saw a kernel running", seen.gpu_share)
    cores = f"({seen.main_cores:.1f} cores)"
    found = [gpu, Measured(f"of the time the main process had work {cores}", seen.main_share)]
    if seen.workers:
        what = f"of the time its {seen.workers} workers had work ({seen.worker_cores:.1f} cores)"
        found.append(Measured(what, seen.workers_share))
    if seen.foreign_cores > FOREIGN:
        found.append(Measured("were used by other programs", seen.foreign_cores, "cores"))
    return tuple(found)


def of_samples(samples: Sequence[Sample]) -> Evidence:
    """Return the evidence of a script that was seen from outside."""
    end = samples[-1].at_s if samples else 0.0
    kept = [sample for sample in samples if sample.at_s > max(START_S, START_SHARE * end)]
    if not kept:
        return Evidence("cpu", outside=OutsideEvidence())
    card = _own_card(samples)
    main = fmean(sample.main for sample in kept)
    workers = fmean(sample.workers for sample in kept)
    others = fmean(sample.others for sample in kept)
    machine = fmean(sample.machine for sample in kept)
    outside = OutsideEvidence(
        samples=len(kept),
        main_cores=main,
        main_share=fmean(sample.main_runs for sample in kept),
        workers=int(np.median([sample.worker_count for sample in kept])),
        worker_cores=workers,
        workers_share=fmean(sample.workers_run for sample in kept),
        foreign_cores=max(0.0, machine - main - workers - others),
        gpu_share=_mean([_gpu_busy(sample.gpus[card]) for sample in kept]) if card else None,
    )
    return Evidence("gpu" if card else "cpu", outside=outside)


def _own_card(samples: Sequence[Sample]) -> str | None:
    """Return the UUID of the GPU that the script used, by its processes or by memory it took."""
    grown: dict[str, float] = {}  # in a container the driver's process ids are the host's
    for uuid in samples[0].gpus:
        seen = [sample.gpus[uuid] for sample in samples]
        if any(gpu["own"] for gpu in seen):
            return uuid
        held = [gpu["memory_gib"] for gpu in seen if gpu["memory_gib"] is not None]
        if held and max(held) - held[0] > GROWN_GIB:
            grown[uuid] = max(held) - held[0]
    return max(grown, key=lambda uuid: grown[uuid], default=None)


def _gpu_busy(seen: CardReading) -> float | None:
    """Return NVML's utilization in a sample: its buffered samples, or what nvidia-smi prints."""
    buffered = _mean([share for _, share in seen["gpu"] or ()])
    return seen["gpu_now"] if buffered is None else buffered


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
