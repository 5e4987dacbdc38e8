"""The labelled fault set: pipelines with one planted fault each, healthy ones, mixtures of two.

A label is what was planted, not what the diagnosis says: each fault names the resource it takes
from the device, and `cured` is the same pipeline without it, so that what it costs can be measured
(`true_loss`). Severities 1 and 3 and the calibration seeds are for setting thresholds, 2 and 4 and
the scoring seeds for scoring; none is used for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.lab.launcher import launch
from labkit.lab.machine import Machine
from labkit.lab.pipeline import Pipeline
from labkit.lab.run import Run

CALIBRATION = {"severities": (1, 3), "seeds": (100, 101, 102, 103, 104)}
SCORING = {"severities": (2, 4), "seeds": (0, 1, 2, 3, 4)}
BOTH, CPU, GPU = ("cpu", "gpu"), ("cpu",), ("gpu",)
STEPS = 24
FASTER = 1.25  # BF16 counts as the faster format from this speed-up on

Amount = float
Knobs = Callable[[Amount], dict[str, Any]]


def nothing(_amount: Amount) -> dict[str, Any]:
    """No knob depends on the amount."""
    return {}


@dataclass(frozen=True)
class Fault:
    """One way to make a pipeline slow, in four severities.

    Attributes:
        name: The fault.
        expected: What a right diagnosis names first.
        amounts: Its size at severity 1 to 4, in the unit that `about` states.
        about: What is planted, and the unit of the amount.
        devices: Where it can show: "cpu", "gpu".
        plant: Name in `labkit.bench.slow_faults`; None where knobs alone make the fault.
        also: A second fault, "name@amount", for mixtures.
        knobs: The knobs it needs, from the amount.
        cure: The knobs that take it away (its plant is left out too), from the amount.
        needs: "bf16" where it shows only on a device on which BF16 is faster.
    """

    name: str
    expected: str
    amounts: tuple[Amount, Amount, Amount, Amount]
    about: str
    devices: tuple[str, ...] = BOTH
    plant: str | None = None
    also: str | None = None
    knobs: Knobs = field(default=nothing, repr=False)
    cure: Knobs = field(default=nothing, repr=False)
    needs: str | None = None


@dataclass(frozen=True)
class Case:
    """A fault at one severity (1 to 4) with one seed: one run."""

    fault: Fault
    severity: int
    seed: int

    @property
    def amount(self) -> Amount:
        """The size of the fault, in the fault's own unit."""
        return self.fault.amounts[self.severity - 1]

    @property
    def planted(self) -> str | None:
        """What the bench is told to plant; None where knobs alone make the fault."""
        own = f"{self.fault.plant}@{self.amount:g}" if self.fault.plant else None
        return "+".join(filter(None, (own, self.fault.also))) or None

    def pipeline(self, precision: str) -> Pipeline:
        """The pipeline, on a healthy base that runs in `precision` where the fault is not it."""
        knobs = BASE | {"precision": precision} | self.fault.knobs(self.amount)
        return Pipeline(**knobs, seed=self.seed)

    def cured(self, precision: str) -> Pipeline:
        """The same pipeline without the fault."""
        return self.pipeline(precision).but(**self.fault.cure(self.amount))

    def start(self, precision: str) -> Run:
        """Start it in a process of its own."""
        return launch(self.pipeline(precision), fault=self.planted)

    def __str__(self) -> str:
        return f"{self.fault.name} severity {self.severity} seed {self.seed}"


# A healthy step of 20 to 40 ms on one core; the data is ready in 0.3 ms.
BASE: dict[str, Any] = {
    "dataset": "array", "model": "cnn", "image_px": 64, "width": 48, "depth": 3,
    "fused_optimizer": True, "steps": STEPS, "seconds": 10.0,
}  # fmt: skip
JPEG = {"dataset": "jpeg", "io_ms": 0.0, "num_workers": 1}


def _jpeg(**knobs: Any) -> Knobs:
    return lambda amount: JPEG | {k: int(amount) if v is ... else v for k, v in knobs.items()}


def _knobs(**knobs: Any) -> Knobs:
    return lambda amount: {k: int(amount) if v is ... else v for k, v in knobs.items()}


FAULTS: tuple[Fault, ...] = (
    # The data comes late
    Fault("slow decode", "input", (4, 6, 8, 12), "every file decoded this many times more",
          plant="slow_decode", knobs=_jpeg()),
    Fault("heavy augmentation", "input", (12, 16, 24, 40), "rounds of augmentation",
          knobs=_jpeg(augment=...), cure=_knobs(augment=1)),
    Fault("object building", "input", (1800, 2500, 3500, 5000), "dictionaries built for every item",
          plant="object_building"),
    Fault("slow-disk stalls", "input", (150, 220, 300, 450), "ms of stall in one of 6 batches",
          knobs=_knobs(stall_ms=..., stall_every=6), cure=_knobs(stall_ms=0)),
    Fault("no workers", "input", (1, 2, 3, 5), "ms of storage wait per item, num_workers=0",
          knobs=lambda ms: {"io_ms": ms}, cure=_knobs(num_workers=6)),
    Fault("too few workers", "input", (5, 7, 10, 15), "ms of storage wait per item, num_workers=1",
          knobs=lambda ms: JPEG | {"io_ms": ms}, cure=_knobs(num_workers=8)),
    # In a steady state idle workers cost memory, not time: they show where items are heavy
    Fault("too many workers", "input", (4, 6, 8, 10), "workers on heavy items, on two cores",
          knobs=_jpeg(num_workers=..., augment=12, steps=60),
          cure=_knobs(num_workers=1, augment=1)),
    Fault("thread oversubscription", "input", (3, 4, 6, 8), "blurs an item, on 16 threads in each "
          "of 2 workers", plant="oversubscribed", knobs=_knobs(num_workers=2)),
    Fault("prefetch too small", "input", (120, 160, 200, 260), "ms of stall in one of 5 batches, "
          "2 workers with 1 batch each", knobs=_knobs(num_workers=2, prefetch_factor=1,
          stall_ms=..., stall_every=5), cure=_knobs(prefetch_factor=8)),
    # Copies
    Fault("many small copies", "transfer", (250, 400, 600, 1000), "pieces a sample is copied in",
          plant="small_copies"),
    Fault("pageable copies", "transfer", (64, 96, 128, 192), "samples of 224 px, not pinned", GPU,
          knobs=_knobs(image_px=224, batch_size=..., width=16, num_workers=8),
          cure=_knobs(pin_memory=True, non_blocking=True, prefetch_to_device=True)),
    # The host keeps the device waiting
    Fault("tiny batches", "launch", (16, 12, 10, 8), "channels, at batch size 1",
          knobs=_knobs(width=..., image_px=32, batch_size=1, steps=100),
          cure=_knobs(batch_size=64)),
    Fault("sync every step", "launch", (8, 16, 32, 64), ".item() calls a step", GPU,
          plant="read_losses"),
    Fault("logging every step", "launch", (12, 20, 30, 50), "passes over all parameters' "
          "statistics a step", plant="log_everything"),
    Fault("launch storm", "launch", (1500, 2500, 4000, 6000), "pairs of operators on 8 numbers",
          plant="launch_storm"),
    Fault("Python-heavy model", "launch", (300, 500, 800, 1200), "thousand turns of a loop",
          plant="python_heavy"),
    Fault("recompiles", "launch", (4, 3, 2, 1), "steps to a recompile", plant="recompiles"),
    # On a CPU 60 breaks cost less than can be measured (a few µs each against 30 ms of compute)
    Fault("graph breaks", "launch", (60, 90, 120, 160), "graph breaks a forward", GPU,
          plant="graph_breaks"),
    Fault("foreach off", "launch", (600, 900, 1400, 2000), "small parameters updated one by one",
          plant="one_by_one_optimizer"),
    Fault("evaluation stalls", "launch", (8, 12, 20, 30), "batches evaluated every 5th step",
          plant="evaluate"),
    Fault("checkpoint in the loop", "launch", (30, 60, 90, 140), "MB written every 5th step",
          plant="checkpoint"),
    Fault("garbage collection", "launch", (10, 6, 4, 2), "steps to a full collection",
          plant="collect_garbage"),
    # Memory traffic and number formats
    Fault("elementwise chain", "memory_bandwidth", (2, 3, 4, 6), "GELUs written out",
          plant="elementwise_chain"),
    Fault("unfused optimizer", "memory_bandwidth", (384, 512, 640, 768), "features of an MLP",
          knobs=_knobs(model="mlp", width=..., image_px=48, fused_optimizer=False,
                       precision="fp32"), cure=_knobs(fused_optimizer=True)),
    Fault("FP32 where BF16 would do", "precision", (40, 48, 64, 80), "channels",
          knobs=_knobs(width=..., precision="fp32"), cure=_knobs(precision="bf16"), needs="bf16"),
    Fault("unaligned size", "precision", (1023, 2047, 3071, 4095), "features, no multiple of 8",
          GPU, knobs=_knobs(model="transformer", width=...)),
)  # fmt: skip

HEALTHY: tuple[Fault, ...] = (
    Fault("healthy CNN", "compute", (40, 48, 56, 64), "channels", knobs=_knobs(width=...)),
    Fault("healthy transformer", "compute", (144, 160, 176, 192), "features",
          knobs=_knobs(model="transformer", width=..., image_px=48, precision="fp32")),
    Fault("healthy MLP", "compute", (1024, 1152, 1280, 1408), "features, batch size 128",
          knobs=_knobs(model="mlp", width=..., batch_size=128, image_px=32)),
    Fault("healthy with a worker", "compute", (64, 72, 80, 96), "channels, real files",
          knobs=_jpeg(width=...)),
)  # fmt: skip

MIXTURES: tuple[Fault, ...] = (
    Fault("objects and a Python loop", "input", (3000, 3500, 4000, 5000), "dictionaries an item",
          plant="object_building", also="python_heavy@250"),
    Fault("small copies and objects", "transfer", (700, 800, 900, 1100), "pieces a sample",
          plant="small_copies", also="object_building@300"),
    Fault("garbage and a chain", "launch", (2, 2, 1, 1), "steps to a full collection",
          plant="collect_garbage", also="elementwise_chain@2"),
    Fault("a chain and checkpoints", "memory_bandwidth", (5, 6, 7, 8), "GELUs written out",
          plant="elementwise_chain", also="checkpoint@20"),
)  # fmt: skip

EVERYTHING = (*FAULTS, *HEALTHY, *MIXTURES)


def named(name: str) -> Fault:
    """Return the fault of that name; raises ValueError, listing them, where there is none."""
    for fault in EVERYTHING:
        if fault.name == name:
            return fault
    raise ValueError(f"{name!r} is not in the fault set: {', '.join(f.name for f in EVERYTHING)}.")


def cases(half: dict[str, tuple[int, ...]], seeds: int = 5) -> Iterator[Case]:
    """Yield each fault once per seed of a half of the set, its severities taking turns."""
    for turn, seed in enumerate(half["seeds"][:seeds]):
        severity = half["severities"][turn % len(half["severities"])]
        for fault in EVERYTHING:
            yield Case(fault, severity, seed)


def faster_format() -> tuple[str, Machine]:
    """Measure which of FP32 and BF16 the base model is faster in here; return it and the machine.

    Raises RuntimeError where that run fails.
    """
    run = launch(Pipeline(**(BASE | {"precision": "fp32"}))).wait()
    if run.outcome != "finished":
        raise RuntimeError(f"The fault set's base run did not finish: {run.error or run.outcome}")
    speedup = (run.xray_facts or {}).get("bf16_speedup") or 0.0
    return ("bf16" if speedup > FASTER else "fp32"), run.machine


def cannot_show(fault: Fault, kind: str, precision: str) -> str | None:
    """Why the fault cannot show on this kind of device ("cpu" or "gpu"), or None."""
    if kind not in fault.devices:
        return f"shows on a {' or '.join(fault.devices).upper()} only"
    if fault.needs == "bf16" and precision != "bf16":
        return "BF16 is not faster than FP32 on this device (measured)"
    return None


def true_loss(case: Case, precision: str) -> float | None:
    """Run a case with and without its fault: the share of time (0 to 1) that the fault costs.

    None where one of the two failed or trained on too few steps.
    """
    sick = case.start(precision).wait()
    well = launch(case.cured(precision).but(xray=False)).wait()
    rates = sick.throughput, well.throughput
    return 1 - rates[0] / rates[1] if all(rates) else None
