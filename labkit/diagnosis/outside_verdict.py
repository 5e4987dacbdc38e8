"""What CPU use and GPU counters, seen from outside a script, can tell about its bottleneck.

Nobody outside knows when the loop waits: so confidence is low or medium, or it is `unsure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.core_use import mean_known
from labkit.diagnosis.findings import DEVICE_LIMIT, ISSUING, Finding, Measured
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.wording import worded

if TYPE_CHECKING:
    from labkit.watching.outside import CardReading, Sample

# So much of a script is start-up (imports, the model, workers): the larger of a share and seconds
START_SHARE = 0.2
START_S = 3.0
MIN_SAMPLES = 8  # two seconds
FOREIGN = 0.5  # cores of other programs that are worth a word
GROWN_GIB = 0.2  # memory that a script's own CUDA context takes at the least
SETTLE = (
    "`for batch in lk.watch(loader):` in the script would settle it. Without a loader, lk.watch "
    "goes round what the loop steps over: `for step in lk.watch(range(1000)):`."
)
FEED = Remedy(
    "feed_from_outside",
    "Give the DataLoader more workers, or do less work per item; `labkit tune` says how many. See "
    "notebook 03, section 1 (Workers, on real work).",
)
CHEAPER_COMPUTE = Remedy(
    "cheaper_compute", "Notebooks 04, 05 and 07 make the device's own work cheaper."
)
MODEL = Remedy("model", "The model is the limit on this CPU.")
LAUNCH_LESS = Remedy(
    "launch_less",
    "Launch fewer and larger kernels. See notebook 07, section 3 (Hundreds of tiny kernels).",
)


def finding_of(name: str, cause: str, words: str, *remedies: Remedy) -> Finding:
    """Return a finding without a number of its own."""
    return Finding(name, cause, measured=(Measured(words),), remedies=remedies)


TOO_SHORT = finding_of("unsure", "too_short", "the script ended too soon to tell")
ALIKE = finding_of("unsure", "alike", "preparing data and training look the same from outside")
GPU_WORKS = Finding("compute", "busy_gpu", remedies=(CHEAPER_COMPUTE,))
WORKERS_WORK = finding_of("input", "busy_workers", "the script waited for its workers", FEED)
ALL_WAIT = finding_of("input", "all_wait", "it waited, for storage, a network or a sleep", FEED)
GPU_RESTS = finding_of("input", "idle_gpu", "it was busy with data, or with issuing work", FEED)
LAUNCHES = Finding("launch", ISSUING, remedies=(LAUNCH_LESS,))
TRAINS = Finding("compute", DEVICE_LIMIT, remedies=(MODEL,))


@dataclass(frozen=True)
class SeenOutside:
    """What the processes of a script show to who looks at them from outside, start-up left out."""

    samples: int = 0  # four a second
    main_cores: float = 0.0
    main_share: float = 0.0  # in which the main process had work
    workers: int = 0
    worker_cores: float = 0.0
    workers_share: float = 0.0  # in which they had work
    foreign_cores: float = 0.0  # of other programs
    on_gpu: bool = False  # whether it has a GPU
    gpu_share: float | None = None  # in which NVML saw its kernels run; None: it did not tell

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> SeenOutside:
        """Build from samples: the means of those after the start."""
        end = samples[-1].at_s if samples else 0.0
        kept = [sample for sample in samples if sample.at_s > max(START_S, START_SHARE * end)]
        if not kept:
            return cls()
        card = _own_card(samples)
        main = fmean(sample.main for sample in kept)
        workers = fmean(sample.workers for sample in kept)
        foreign = fmean(sample.machine - sample.others for sample in kept) - main - workers
        return cls(
            samples=len(kept),
            main_cores=main,
            main_share=fmean(sample.main_runs for sample in kept),
            workers=int(median(sample.worker_count for sample in kept)),
            worker_cores=workers,
            workers_share=fmean(sample.workers_run for sample in kept),
            foreign_cores=max(0.0, foreign),
            on_gpu=card is not None,
            gpu_share=mean_known(_gpu_busy(sample.gpus[card]) for sample in kept) if card else None,
        )

    def finding(self) -> Finding:
        """Return what the shares of time tell."""
        if self.samples < MIN_SAMPLES:
            return TOO_SHORT
        main_waits = self.main_share < limits.WAITS
        workers_wait = self.workers_share < limits.WAITS
        main_works = self.workers > 0 and self.main_share >= limits.RUNS
        workers_work = self.workers > 0 and self.workers_share >= limits.RUNS
        if self.gpu_share is None:
            if main_waits:
                return WORKERS_WORK if workers_work else ALL_WAIT
            is_model = main_works and workers_wait and not self.on_gpu  # which it may wait for
            return TRAINS if is_model else ALIKE
        if self.gpu_share >= limits.BUSY_GPU:
            return GPU_WORKS
        if workers_work:
            return WORKERS_WORK
        if main_waits and workers_wait:
            return ALL_WAIT
        return LAUNCHES if main_works else GPU_RESTS

    def measured(self) -> tuple[Measured, ...]:
        """Return the numbers for a person."""
        gpu = Measured("NVML tells nothing of its GPU" if self.on_gpu else "no GPU in use")
        if self.gpu_share is not None:
            gpu = Measured("of the time NVML saw a kernel running", self.gpu_share)
        cores = f"({self.main_cores:.1f} cores)"
        found = [gpu, Measured(f"of the time the main process had work {cores}", self.main_share)]
        if self.workers:
            cores = f"({self.worker_cores:.1f} cores)"
            words = f"of the time its {self.workers} workers had work {cores}"
            found.append(Measured(words, self.workers_share))
        if self.foreign_cores > FOREIGN:
            found.append(Measured("were used by other programs", self.foreign_cores, "cores"))
        return tuple(found)


def judge(samples: Sequence[Sample]) -> dict[str, str | float | None]:
    """Name the bottleneck as far as the samples of `labkit.watching.outside` reach.

    The confidence is "low", "medium" or "none"; with it come the means behind it: cores used, and
    shares of time in which the script and its workers had work.
    """
    shown = SeenOutside.of(samples)
    found = shown.finding()
    confidence = "medium" if found in (GPU_WORKS, WORKERS_WORK) else "low"
    if found is not TOO_SHORT:
        found = replace(found, measured=shown.measured() + found.measured)
    found = worded(found)
    numbers = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(shown).items()
    }
    return {
        "bottleneck": found.name,
        "confidence": "none" if found.name == "unsure" else confidence,
        "evidence": found.evidence,
        "advice": f"{found.advice} {SETTLE}".strip(),
        **numbers,
    }


def _own_card(samples: Sequence[Sample]) -> str | None:
    """Return the UUID of the GPU that the script used, by its processes or by memory it took."""
    grown: dict[str, float] = {}  # in a container the driver's process ids are the host's
    for uuid in samples[0].gpus:
        read = [sample.gpus[uuid] for sample in samples]
        if any(gpu["own"] for gpu in read):
            return uuid
        held = [gpu["memory_gib"] for gpu in read if gpu["memory_gib"] is not None]
        if held and max(held) - held[0] > GROWN_GIB:
            grown[uuid] = max(held) - held[0]
    return max(grown, key=lambda uuid: grown[uuid], default=None)


def _gpu_busy(read: CardReading) -> float | None:
    """Return NVML's utilization in a sample, but for that of other processes.

    It is the mean of the samples that the driver buffered, else what nvidia-smi prints.
    """
    buffered = mean_known(share for _, share in read["gpu"] or ())
    busy = read["gpu_now"] if buffered is None else buffered
    return None if busy is None else max(0.0, busy - (read["others_sm"] or 0.0))
