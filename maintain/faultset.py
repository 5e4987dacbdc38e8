"""The labelled fault set, its runs, and the score of the diagnosis on them: 15 minutes on a CPU.

`python maintain/faultset.py [--only NAME] [--seeds 5] [--keep FILE]`; with `--keep` it can be
stopped, and goes on where it was. The exit code is 1 where fewer than 90 % are named right.

A label is what was planted: each fault names the resource it takes from the device. The thresholds
of the diagnosis were set on other severities and seeds than these. A GPU does a CPU's step in a
fraction of a millisecond, and then waits for launches whatever was planted: there the base is
larger, and `on_gpu` has what differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from labkit.api import Run, launch
from labkit.diagnosis.findings import NEIGHBOUR
from labkit.diagnosis.judge import diagnose
from labkit.knobs import check_names
from labkit.results.hardware import Machine, machine
from labkit.spec import Pipeline

FASTER = 1.25  # a 16-bit format counts as the faster one from this speed-up on
# Of a base: what is planted can exceed it, and on a GPU it is 10 times the launches
STEP_MS = {"cpu": 30.0, "gpu": 10.0}

Base = dict[str, object]  # knobs; in a `Fault`, `...` stands for the amount


@dataclass(frozen=True)
class Fault:
    """One way to make a pipeline slow, in two severities."""

    name: str
    expected: str  # what a right diagnosis names first
    amounts: tuple[float, float]  # its size at each severity; the comments below have the units
    plant: str | None = None  # name in `slow_faults`; None where knobs alone make the fault
    also: str | None = None  # a second fault, "name@amount", for mixtures
    knobs: Base = field(default_factory=dict)  # those it needs
    only: str | None = None  # "cpu" or "gpu", where it does not show on the other
    needs: str | None = None  # "bf16": a faster 16-bit format; "shm": 1 GiB of /dev/shm
    on_gpu: Base = field(default_factory=dict)  # fields that differ there

    def on(self, kind: str) -> Fault:
        """Return the fault as it is planted on a "cpu" or "gpu"."""
        return replace(self, **self.on_gpu, on_gpu={}) if kind == "gpu" else self


@dataclass
class Case:
    """A fault, as it is on the device here, at one severity with one seed: one run."""

    fault: Fault
    severity: int
    seed: int
    base: Base

    @property
    def amount(self) -> float:
        """The size of the fault."""
        return self.fault.amounts[self.severity - 1]

    @property
    def planted(self) -> str | None:
        """What `slow_faults` plants; None where knobs alone make the fault."""
        own = self.fault.plant and f"{self.fault.plant}@{self.amount:g}"
        return "+".join(filter(None, (own, self.fault.also))) or None

    @property
    def pipeline(self) -> Pipeline:
        """The base with the knobs of the fault."""
        knobs = self.base | self.fault.knobs
        sized = {name: self.amount if value is ... else value for name, value in knobs.items()}
        return Pipeline(**sized, seed=self.seed)


# A healthy step of 20 to 40 ms on one core; `base_here` finds precision and depth. On a GPU the
# width makes a layer many times as long as its launches, also on an H200 in BF16 (0.9 ms),
# and one layer a short step on a T4 (14 ms in FP16).
BOTH = {
    "dataset": "array",
    "model": "cnn",
    "image_px": 64,
    "seconds": 10.0,
    "fused_optimizer": True,
}
BASES: dict[str, Base] = {
    "cpu": BOTH | {"width": 48, "depth": 3, "steps": 24},
    "gpu": BOTH | {"width": 768, "depth": 2, "steps": 40},
}
JPEG = {"dataset": "jpeg", "io_ms": 0.0, "num_workers": 1}
SMALL = {"width": 16, "depth": 3}  # on a GPU: next to nothing beside what is planted
TINY = {"width": ..., "image_px": 32, "batch_size": 1, "steps": 100}
TRANSFORMER = {"model": "transformer", "width": ..., "depth": 1, "batch_size": 64}
LARGE_MAPS = {"width": 256, "depth": 1, "image_px": 128, "batch_size": 64}  # passes over 134 MB
SHORT_QUEUE = {"num_workers": 2, "prefetch_factor": 1, "stall_ms": ..., "stall_every": 5}
WIDE_MLP = {
    "model": "mlp",
    "width": ...,
    "image_px": 48,
    "fused_optimizer": False,
    "precision": "fp32",
}

FAULTS: tuple[Fault, ...] = (
    # == the data comes late ==
    # every file decoded this many times more
    Fault("slow decode", "input", (6, 12), "slow_decode", knobs=JPEG),
    # rounds of augmentation
    Fault("heavy augmentation", "input", (16, 40), knobs=JPEG | {"augment": ...}),
    # dictionaries built for every item
    Fault(
        "object building",
        "input",
        (2500, 5000),
        "object_building",
        on_gpu={"amounts": (9000, 18000)},
    ),
    # ms of stall in one of 6 batches
    Fault("slow-disk stalls", "input", (220, 450), knobs={"stall_ms": ..., "stall_every": 6}),
    # ms of storage wait per item, num_workers=0
    Fault("no workers", "input", (2, 5), knobs={"io_ms": ...}, on_gpu={"amounts": (4, 8)}),
    # ms of storage wait per item, num_workers=1
    Fault("too few workers", "input", (7, 15), knobs=JPEG | {"io_ms": ...}),
    # workers, on two cores: idle ones cost memory, not time; they show where items are heavy
    Fault(
        "too many workers",
        "input",
        (6, 10),
        knobs=JPEG | {"num_workers": ..., "augment": 12, "steps": 60},
        only="cpu",
    ),
    # blurs an item, on 16 threads in each of 2 workers
    Fault(
        "thread oversubscription",
        "input",
        (4, 8),
        "oversubscribed",
        knobs={"num_workers": 2},
        on_gpu={"amounts": (12, 24)},
    ),
    # ms of stall in one of 5 batches (16 on a GPU), 2 workers with 1 batch each
    Fault(
        "prefetch too small",
        "input",
        (160, 260),
        knobs=SHORT_QUEUE,
        on_gpu={"knobs": SHORT_QUEUE | {"stall_every": 16, "steps": 80}},
    ),
    # == copies ==
    # pieces a sample is copied in
    Fault(
        "many small copies", "transfer", (400, 1000), "small_copies", on_gpu={"amounts": (150, 300)}
    ),
    # samples of 224 px, not pinned
    Fault(
        "pageable copies",
        "transfer",
        (96, 192),
        knobs={"width": 4, "depth": 1, "image_px": 224, "batch_size": ..., "num_workers": 12},
        only="gpu",
        needs="shm",
    ),
    # == the host keeps the device waiting ==
    # channels, at batch size 1
    Fault(
        "tiny batches",
        "launch",
        (12, 8),
        knobs=TINY,
        on_gpu={"knobs": TINY | {"depth": 12}},
    ),
    # .item() calls a step
    Fault("sync every step", "launch", (350, 700), "read_losses", only="gpu"),
    # passes over all parameters' statistics a step
    Fault("logging every step", "launch", (20, 50), "log_everything"),
    # pairs of operators on 8 numbers
    Fault(
        "launch storm",
        "launch",
        (2500, 6000),
        "launch_storm",
        on_gpu={"amounts": (500, 1200), "knobs": SMALL},
    ),
    # thousand turns of a loop
    Fault(
        "Python-heavy model",
        "launch",
        (500, 1200),
        "python_heavy",
        on_gpu={"amounts": (1000, 2000)},
    ),
    # steps to a recompile
    Fault("recompiles", "launch", (3, 1), "recompiles", on_gpu={"knobs": {"depth": 2}}),
    # small parameters updated one by one
    Fault(
        "foreach off",
        "launch",
        (900, 2000),
        "one_by_one_optimizer",
        on_gpu={"amounts": (250, 600), "knobs": SMALL},
    ),
    # batches evaluated every 5th step
    Fault("evaluation stalls", "launch", (12, 30), "evaluate"),
    # MB written every 5th step
    Fault("checkpoint in the loop", "launch", (60, 140), "checkpoint"),
    # steps to a full collection
    Fault("garbage collection", "launch", (6, 2), "collect_garbage"),
    # == memory traffic and number formats ==
    # GELUs written out
    Fault(
        "elementwise chain",
        "memory_bandwidth",
        (3, 6),
        "elementwise_chain",
        on_gpu={"amounts": (6, 12), "knobs": LARGE_MAPS},
    ),
    # features of an MLP
    Fault(
        "unfused optimizer",
        "memory_bandwidth",
        (512, 768),
        knobs=WIDE_MLP,
        on_gpu={"amounts": (6144, 8192), "knobs": WIDE_MLP | {"depth": 4}},
    ),
    # channels
    Fault(
        "FP32 where BF16 would do",
        "precision",
        (48, 80),
        knobs={"width": ..., "precision": "fp32"},
        needs="bf16",
        on_gpu={"amounts": (384, 512)},
    ),
    # features, no multiple of 8
    Fault(
        "unaligned size",
        "precision",
        (2815, 3327),
        knobs=TRANSFORMER,
        only="gpu",
    ),
)

HEALTHY: tuple[Fault, ...] = (
    # channels
    Fault(
        "healthy CNN", "compute", (48, 64), knobs={"width": ...}, on_gpu={"amounts": (768, 1024)}
    ),
    # features
    Fault(
        "healthy transformer",
        "compute",
        (160, 192),
        knobs=TRANSFORMER | {"depth": 3, "image_px": 48, "batch_size": 16, "precision": "fp32"},
        on_gpu={
            "amounts": (4096, 5120),
            "knobs": TRANSFORMER | {"batch_size": 96},
        },
    ),
    # features, batch size 128 (2048 on a GPU)
    Fault(
        "healthy MLP",
        "compute",
        (1152, 1408),
        knobs={"model": "mlp", "width": ..., "batch_size": 128, "image_px": 32},
        on_gpu={
            "amounts": (7168, 9216),
            "knobs": {"model": "mlp", "width": ..., "depth": 5, "batch_size": 2048, "image_px": 16},
        },
    ),
    # channels, real files
    Fault(
        "healthy with a worker",
        "compute",
        (72, 96),
        knobs=JPEG | {"width": ...},
        on_gpu={
            "amounts": (1792, 2304),
            "knobs": JPEG | {"width": ..., "image_px": 32, "num_workers": 2},
        },
    ),
)

MIXTURES: tuple[Fault, ...] = (
    # dictionaries an item
    Fault(
        "objects and a Python loop",
        "input",
        (3500, 5000),
        "object_building",
        also="python_heavy@250",
        on_gpu={"amounts": (12000, 20000)},
    ),
    # pieces a sample
    Fault(
        "small copies and objects",
        "transfer",
        (800, 1100),
        "small_copies",
        also="object_building@300",
        on_gpu={"amounts": (250, 400)},
    ),
    # steps to a full collection
    Fault("garbage and a chain", "launch", (2, 1), "collect_garbage", also="elementwise_chain@2"),
    # GELUs written out
    Fault(
        "a chain and checkpoints",
        "memory_bandwidth",
        (6, 8),
        "elementwise_chain",
        also="checkpoint@20",
        on_gpu={"amounts": (8, 12), "also": "checkpoint@1", "knobs": LARGE_MAPS},
    ),
)

EVERYTHING = (*FAULTS, *HEALTHY, *MIXTURES)


def finished(pipeline: Pipeline, planted: str | None = None) -> Run:
    """Run a pipeline with "name@amount+..." planted in it; raises RuntimeError where it fails."""
    hook = planted and f"slow_faults:plant_all:{planted}"
    run = launch(pipeline, fault=hook).wait_or_raise()
    if run.outcome != "finished" or not run.throughput:
        raise RuntimeError(f"It did not finish: {run.error or run.outcome}")
    return run


@dataclass
class Here:
    """Where the set is run: the healthy base, and the machine."""

    base: Base
    machine: Machine

    def cannot_show(self, fault: Fault) -> str | None:
        """Return why a fault cannot show on this base and machine; None if it can."""
        shm_gib = self.machine.shm_gib
        if fault.only not in (None, self.machine.kind):
            return f"shows on a {fault.only.upper()} only"
        if fault.needs == "bf16" and self.base["precision"] == "fp32":
            return "BF16 is not faster than FP32 on this device (measured)"
        if fault.needs == "shm" and shm_gib is not None and shm_gib < 1:
            return f"takes 1 GiB of /dev/shm, and there are {shm_gib:.2f}: docker run --shm-size=2g"
        return None


def base_here() -> Here:
    """Measure, in one run or two, the base's faster format and its depth here."""
    base = BASES[machine().kind] | {"precision": "fp32"}
    plain = finished(Pipeline(**base))
    is_gpu = plain.machine.kind == "gpu"
    half = "bf16"
    speedup = (plain.xray_facts or {}).get("bf16_speedup")
    if speedup is None and is_gpu:
        rounded = finished(Pipeline(**base | {"precision": "fp16", "xray": False}))
        half = rounded.pipeline.precision
        plain_ms, rounded_ms = (median(run.steps_ms[:, 2]) for run in (plain, rounded))
        speedup = plain_ms / rounded_ms
    step_ms = median(plain.steps_ms[:, 2])
    if speedup and speedup > FASTER:
        base["precision"] = half
        step_ms /= speedup
    base["depth"] = max(1, round(base["depth"] * STEP_MS[plain.machine.kind] / step_ms))
    return Here(base, plain.machine)


Row = dict[str, Any]  # one run: the fault with its severity and seed; what is expected, and named


@dataclass
class Score:
    """What the diagnosis named, run by run; "unsure" is never right."""

    machine: str
    rows: list[Row]
    skipped: dict[str, str]  # faults that cannot show here, and why

    @property
    def wrong(self) -> list[Row]:
        """The runs whose first-ranked bottleneck is not the planted one."""
        return [row for row in self.rows if row["named"] != row["expected"]]

    @property
    def accuracy(self) -> float:
        """The share of the runs that were named right."""
        return 1 - len(self.wrong) / len(self.rows)

    def __str__(self) -> str:
        table = pd.DataFrame(self.rows)
        healthy = table["expected"] == "compute"
        alarms = healthy & ~table["named"].isin(["compute", "unsure"])
        lines = [
            f"On {self.machine}: {len(self.rows)} runs, {self.accuracy:.1%} right, "
            f"{alarms.sum()} healthy ones called sick",
            pd.crosstab(table["expected"], table["named"]).to_string(),
        ]
        for row in self.wrong:
            lines.append("  {fault}, severity {severity}, seed {seed}: named {named}".format(**row))
        for name, why in self.skipped.items():
            lines.append(f"  not run: {name}: {why}")
        return "\n".join(lines)


def result_of(case: Case) -> Row:
    """Run one case and return what was planted, and what the diagnosis named."""
    found = diagnose(finished(case.pipeline, case.planted))
    if found.findings[0].cause == NEIGHBOUR:  # others used the device: once more
        found = diagnose(finished(case.pipeline, case.planted))
    return {
        "fault": case.fault.name,
        "severity": case.severity,
        "seed": case.seed,
        "expected": case.fault.expected,
        "named": found.bottleneck,
        "why": found.findings[0].cause,
    }


def run_set(
    *,
    seeds: int = 5,
    only: Collection[str] | None = None,
    keep: str | os.PathLike[str] | None = None,
) -> Score:
    """Run the fault set on this machine, diagnose every run, return the score.

    Each of the first `seeds` runs every fault once, or those named in `only`. `keep` is a
    file of results, a JSON object a line: cases in it are not run again.
    """
    by_name = {fault.name: fault for fault in EVERYTHING}
    check_names(only or (), by_name, "fault")
    here = base_here()
    chosen = [by_name[name] for name in only or by_name]
    skipped = {fault.name: why for fault in chosen if (why := here.cannot_show(fault))}
    faults = [fault.on(here.machine.kind) for fault in chosen if fault.name not in skipped]
    file = Path(keep or os.devnull)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {(row["fault"], row["seed"]): row for row in map(json.loads, lines)}
    rows = []
    for seed, fault in itertools.product(range(seeds), faults):
        row = known.get((fault.name, seed))
        if row is None:
            row = result_of(Case(fault, 1 + seed % 2, seed, here.base))
            print(row, file=sys.stderr)
            with file.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(row) + "\n")
        rows.append(row)
    return Score(here.machine.name, rows, skipped)


def main() -> int:
    """Score the diagnosis; return 1 where fewer than 90 % are named right."""
    here = str(Path(__file__).parent)  # the bench that a fault is planted in imports it, too
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--keep", metavar="FILE")
    score = run_set(**vars(parser.parse_args()))
    print(score)
    return int(score.accuracy < 0.9)


if __name__ == "__main__":
    sys.exit(main())
