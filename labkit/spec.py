"""What is asked for: the frozen specs of a training, with their knobs each declared once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

from labkit import quotas
from labkit.knobs import Knob, Settings, Spec, Trait, check_names, declares_knobs, knob
from labkit.orders import Order

DEVICES = ("auto", "cpu", "mps", "cuda", *(f"cuda:{card}" for card in range(16)))
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of torch.compile: these record CUDA graphs
PYTORCH_PREFETCH = 2  # the DataLoader's prefetch_factor where there are workers and nothing is said
LOOKS_S = 1.2  # that the x-ray and measuring the handoff of batches take, after a run's steps
QUICK_SHARE = 0.25  # of its time limit that a quick run takes; without one, of its steps
SIZE = {"kind": "int", "low": 1, "auto": "chosen for the device"}


@declares_knobs
@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline(Spec):
    """A training pipeline to measure: data, loader, model and how it is trained.

    Frozen: `pipeline.but(num_workers=4)` returns a changed copy. `None` means "chosen for this
    machine or dataset". A bad value raises a ValueError that says what is allowed.
    """

    # fmt: off
    # The data
    dataset: str = knob(
        "jpeg", "jpeg: real files, decoded and augmented; array: preprocessed; sleep: a textbook "
        "delay", choices=("jpeg", "array", "sleep"))
    prep_ms: float | None = knob(
        None, "delay that stands in for preparing one batch, for dataset='sleep' only",
        kind="float", unit="ms", low=0, high=10_000, reach=200, auto="50 ms for 'sleep'",
        traits=("starves", "outside step"))
    io_ms: float | None = knob(
        None, "simulated storage latency per item, as of a network drive (a sleep)",
        kind="float", unit="ms", low=0, high=1_000, reach=20,
        auto="2.5 ms for 'jpeg', but none on a GPU with images of 112 px or more; else 0",
        traits=("starves", "outside step"))
    stall_ms: float = knob(
        0.0, "simulated slow-disk stall (a sleep)", unit="ms", low=0, high=10_000, reach=1000,
        traits=("starves", "outside step"))
    stall_every: int = knob(
        20, "one stall in this many batches, when stall_ms is above 0", low=1, high=100_000,
        traits=("starves", "outside step"))
    image_px: int | None = knob(
        None, "edge of the model's images; files are twice that", kind="int", unit="px", low=8,
        high=512, reach=256, auto="48; for a cnn on 'jpeg' and a GPU up to 128, by the CPU's cores")
    augment: int = knob(
        1, "rounds of random crop, flip and colour change per image", low=0, high=64, reach=16,
        traits=("starves",))
    # The loader: torch.utils.data.DataLoader's own names
    batch_size: int = knob(
        16, "samples in a batch", part="loader", unit="samples", low=1, high=16_384, reach=256,
        traits=("retrains",))
    num_workers: int = knob(
        0, "loader processes; 0 prepares in the training loop", part="loader", low=0, high=128,
        reach=max(16, quotas.cpu_cores().count), traits=("starves", "outside step"))
    pin_memory: bool = knob(
        False, "put batches into page-locked memory", part="loader")
    prefetch_factor: int | None = knob(
        None, "batches each worker keeps ready", part="workers", kind="int", low=1, high=1024,
        reach=16, auto=f"PyTorch's {PYTORCH_PREFETCH} with workers",
        traits=("outside step",))
    persistent_workers: bool = knob(
        False, "keep the workers from one epoch to the next", part="workers",
        traits=("outside step",))  # a run has one epoch
    non_blocking: bool = knob(
        False, "start copies to the device without waiting for them")
    prefetch_to_device: bool = knob(
        False, "copy the next batch on a stream of its own, under the compute of this one")
    # The model
    model: str = knob(
        "cnn", "the model to train, in plain PyTorch", choices=("mlp", "cnn", "transformer"))
    width: int | None = knob(
        None, "channels or features of the model", **SIZE, high=16_384, reach=1024)
    depth: int | None = knob(None, "layers of the model", **SIZE, high=256, reach=32)
    # How it is trained
    precision: str = knob(
        "fp32", "number format of the heavy math; fp32 is PyTorch's own default (convolutions in "
        "TF32 where the GPU has it), ieee is FP32 everywhere; fp16 makes the host wait in every "
        "update for its loss scale, unless the optimizer is fused",
        choices=("fp32", "ieee", "tf32", "fp16", "bf16"), traits=("retrains",))
    accumulation_steps: int = knob(
        1, "batches whose gradients are added up before one update", low=1, high=1024, reach=32)
    compile: str | None = knob(
        None, "torch.compile mode; None runs eagerly", kind="str",
        choices=(None, "default", "reduce-overhead", "max-autotune"))
    channels_last: bool = knob(
        False, "store images and conv weights channels last")
    fused_optimizer: bool = knob(
        False, "update all parameters in one fused kernel")
    # The run
    steps: int | None = knob(
        None, "batches to train on", kind="int", low=1, high=1_000_000, auto="80, on a GPU 400",
        traits=("outside step",))
    seconds: float | None = knob(
        4.0, "stop after this long even if steps remain", kind="float", unit="s", low=0.1,
        high=86_400, reach=60, auto="no limit", traits=("outside step",))
    xray: bool = knob(
        True, "look inside a few more steps with torch.profiler when the measured ones are over",
        traits=("outside step",))
    seed: int = knob(
        0, "seed of weights, order and augmentation", low=0, high=2**31 - 1,
        traits=("outside step",))
    device: str = knob(
        "auto", "auto picks the accelerator where there is one, else the CPU", choices=DEVICES)
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in WITHOUT_WORKERS.items() if self.num_workers == 0 else ():
            value = getattr(self, name)
            if value != default:
                raise ValueError(
                    f"{name}={value!r} needs loader workers and num_workers=0 has none: use "
                    f"num_workers of 1 or more, or leave {name}={default!r}."
                )

    def to_spec(self) -> Order:
        """Return what the first event of its run's log says of it."""
        return {"pipeline": self.to_dict()}

    @property
    def simulated_delay(self) -> str:
        """The sleeps that stand in for something slow, in words; "" without any."""
        slept = []
        if self.dataset == "sleep" and self.prep_ms:
            slept.append(f"prep_ms={self.prep_ms:g} per batch")
        if self.io_ms:
            slept.append(f"io_ms={self.io_ms:g} per item")
        if self.stall_ms:
            slept.append(f"stall_ms={self.stall_ms:g} every {self.stall_every} batches")
        return ", ".join(slept)


class Job(SimpleNamespace):
    """What a `Pipeline` asks for, every knob with the value that is used."""

    dataset: str
    prep_ms: float
    io_ms: float
    stall_ms: float
    stall_every: int
    image_px: int
    augment: int
    batch_size: int
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    non_blocking: bool
    prefetch_to_device: bool
    model: str
    width: int
    depth: int
    precision: str
    accumulation_steps: int
    compile: str | None
    channels_last: bool
    fused_optimizer: bool
    steps: int
    seconds: float | None
    xray: bool
    seed: int
    device: str
    shard: tuple[int, int] = (0, 1)  # its rank, and how many there are, in a distributed run


KNOBS: dict[str, Knob] = Pipeline.knobs
LOADER_KNOBS = tuple(each.name for each in KNOBS.values() if each.part in ("loader", "workers"))
# What the knobs that need workers are where the loader has none
WITHOUT_WORKERS: Settings = {
    each.name: each.default for each in KNOBS.values() if each.part == "workers"
}


def knobs_with(trait: Trait) -> tuple[str, ...]:
    """Return the names of the knobs that have a trait."""
    return tuple(each.name for each in KNOBS.values() if trait in each.traits)


PX = 48  # edge of the default's images on a CPU
STEPS = 80
STEPS_ON_GPU = 400
# Edge of the default's images on a GPU, px, by the least number of CPU cores. A core prepares one
# of 48 px in 0.5 ms, of 128 px in 2.5 ms and of 224 px in 7.3 ms (measured): 0.16 ms and 0.14 µs a
# pixel. A batch of 16 takes three or four steps of 10 ms, so that a GPU waits longer than it
# computes, also where a core is half as fast again. As many workers as cores keep up with it on 4
# cores or more, and on 2 cores they bring two thirds of what it can take
PX_ON_GPU = {8: 128, 2: 112}
STARVES_PX = min(PX_ON_GPU.values())  # a GPU waits for such images without a simulated delay


def automatic(knobs: Settings, gpu: bool = False, cores: int = 0) -> Settings:
    """Return what None stands for in the knobs that need no timing, on a GPU or a CPU."""
    px = PX
    if gpu and knobs["dataset"] == "jpeg" and knobs["model"] == "cnn":
        px = next((edge for least, edge in PX_ON_GPU.items() if cores >= least), PX)
    starves = gpu and (knobs["image_px"] or px) >= STARVES_PX
    return {
        "prep_ms": 50.0,  # a batch
        "io_ms": 2.5 if knobs["dataset"] == "jpeg" and not starves else 0.0,  # an item
        "image_px": px,
        "prefetch_factor": PYTORCH_PREFETCH if knobs["num_workers"] else None,
        "steps": STEPS_ON_GPU if gpu else STEPS,
    }


STARVING = knobs_with("starves")


@declares_knobs
@dataclass(frozen=True, repr=False)
class Distributed(Spec):
    """A pipeline on several ranks (processes, a device each) under DistributedDataParallel.

    Raises ValueError on a bad value.
    """

    pipeline: Pipeline = field(default_factory=Pipeline)  # `batch_size` is each rank's
    ranks: int = knob(2, "processes, a device each", low=1, high=64, reach=4)
    no_sync: bool = knob(False, "exchange gradients only for the last micro-batch of an update")
    starve: Mapping[int, Settings] = field(default_factory=dict)  # {rank: {knob: value}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pipeline.device not in ("auto", "cpu", "cuda"):
            raise ValueError(
                f"device={self.pipeline.device!r}: ranks have a device each; use 'auto', 'cpu' or "
                "'cuda' (CUDA_VISIBLE_DEVICES chooses the cards)."
            )
        for rank, knobs in self.starve.items():
            if rank not in range(self.ranks):
                raise ValueError(f"starve={{{rank!r}: ...}}: use ranks 0 to {self.ranks - 1}.")
            check_names(knobs, STARVING, "knob of the loader's speed in starve:")
            self.pipeline.but(**knobs)  # checks the values

    def to_spec(self) -> Order:
        """Return what the log's first event says of it."""
        starve = {str(rank): dict(knobs) for rank, knobs in self.starve.items()}
        return {**vars(self), "pipeline": self.pipeline.to_dict(), "starve": starve}


def quick_run() -> bool:
    """Return whether LABKIT_QUICK=1 asks for short runs and few repeats, as notebooks' tests do."""
    return os.environ.get("LABKIT_QUICK") == "1"
