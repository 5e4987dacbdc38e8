"""What the course claims of every step: by labels, in records' titles, in what notebooks say.

A claim is what a card has to show. Of a pipeline: the name that the diagnosis gives it ("input",
"transfer", "launch", "memory_bandwidth", "precision", "compute"), "starved" (it waits for data, if
something else costs more), "device" (the card is the limit, in whatever way), or "" for none. Of a
single operation: "launch", "compute", "memory", "transfer"; "not X" of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from standin_gpu import Card

from labkit.course import faultset, slow_script
from labkit.course import record as course_records
from labkit.course.task import all_tasks
from labkit.results.machine import Machine
from labkit.spec import Pipeline

CORES = 16  # of the machine that the card is in
SEVERITIES = (1, 4)  # the mildest and the worst; a mystery is a fault of the worst
COSTS = 0.2  # of its time, at least, of the worst: so that a figure can show it

# -- the host's own work, stated: as measured on a 2 GHz core of a server, good to a factor of 2 ---

HOST_US = {  # of a step, by planted fault and its amount
    "python_heavy": lambda thousand_turns: 25 * thousand_turns,
    "collect_garbage": lambda every: 90_000 / every,
    "checkpoint": lambda mb: 3_500 * mb / 5,
    "recompiles": lambda every: 150_000 / every,
    "graph_breaks": lambda breaks: 25 * breaks,
    "log_everything": lambda passes: 1_000 * passes,  # a synced file; .item() is recorded
}
ITEM_US = {  # of an item, by planted fault, its amount and what the item costs without
    "slow_decode": lambda times, item_us: times * item_us,
    "object_building": lambda objects, _: 0.22 * objects,
    "oversubscribed": lambda blurs, _: 430 * blurs,
}
ONLY_HOST = {*ITEM_US, "python_heavy", "collect_garbage", "checkpoint", "recompiles"}  # no operator


def loader_us(job: Any, planted: str | None) -> float:
    """Return what a batch costs in one process of the loader, us."""
    item_us = 0.0
    if job.dataset == "jpeg":
        item_us = (250 + 200 * job.augment) * (job.image_px / 48) ** 2
    extra = [ITEM_US[name](amount, item_us) for name, amount in parts(planted) if name in ITEM_US]
    batch_us = 100 + job.batch_size * (item_us + 1e3 * job.io_ms + sum(extra))
    if job.dataset == "array":
        batch_us += 3 * job.image_px**2 * job.batch_size / 2e3  # 2 GB/s
    return batch_us + (1e3 * job.prep_ms if job.dataset == "sleep" else 0)


def parts(planted: str | None) -> Iterator[tuple[str, int]]:
    """Yield the faults and amounts of a text such as "python_heavy@40+checkpoint@8"."""
    for each in filter(None, (planted or "").split("+")):
        name, _, amount = each.partition("@")
        yield name, int(float(amount))


# -- pipelines ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claimed:
    """A pipeline, and what is claimed of it."""

    label: str
    pipeline: Pipeline
    claim: str = ""
    planted: str | None = None
    fixes: tuple[str, ...] | None = None  # of the slow script
    cured: Pipeline | None = None  # without the fault: it has to cost `COSTS`


DEFAULT = {"jpeg": "input", "array": "device", "sleep": "input"}  # without workers
RECORDS = {  # by the beginning of a record's name
    "workers-0": "starved", "decode-0": "starved", "textbook-0": "starved",
    "textbook-1 ": "starved", "stall-2": "starved", "batch-64": "device", "batch-256": "device",
    "precision-fp32": "precision", "precision-": "device", "compile-off": "launch",
    "capstone-4": "precision", "capstone-5": "memory_bandwidth", "capstone-6": "device",
}  # fmt: skip
EXERCISES = {  # of a challenge: its base, its solution
    "00-first": ("starved", ""), "02-feed": ("starved", ""), "03-stalls": ("starved", ""),
    "04-knee": ("launch", "launch"),
}  # fmt: skip
FREE = {"dataset": "sleep", "prep_ms": 0.0}  # data that costs nothing
SMALL = {"dataset": "array", "model": "mlp", "image_px": 32}
NOTEBOOK = {
    "00 first": ("starved", {}),
    "02 full": ("starved", {"dataset": "sleep", "prep_ms": 250.0, "model": "mlp", "width": 16_384,
                            "depth": 1}),
    "02 lean": ("device", FREE),
    "02 worst": ("input", {"batch_size": 32}),
    "02 without the loader": ("device", {"batch_size": 32, "dataset": "array", "num_workers": 2}),
    "03 decode": ("starved", {"io_ms": 0.0, "augment": 6}),
    "04 batch 1024": ("device", {**FREE, "model": "mlp", "depth": 3, "batch_size": 1024}),
    "05 wide": ("precision", {**SMALL, "width": 4096, "depth": 3, "batch_size": 2048}),
    "05 tiny": ("launch", {**SMALL, "width": 32, "depth": 1, "batch_size": 8}),
    "06 at once": ("launch", {**FREE, "model": "mlp", "width": 128, "depth": 3, "batch_size": 64}),
    "07 step": ("device", {"dataset": "array", "image_px": 32}),
}  # fmt: skip


def pipelines(card: Card, base: dict[str, Any]) -> Iterator[Claimed]:
    """Yield every pipeline of the course for a card; `base` is the one of its fault set."""
    for model in ("mlp", "cnn", "transformer"):
        for dataset, claim in DEFAULT.items():
            yield Claimed(
                f"default {model} {dataset}", Pipeline(model=model, dataset=dataset), claim
            )
    for name, (claim, knobs) in NOTEBOOK.items():
        yield Claimed(f"notebook {name}", Pipeline(**knobs), claim)
    here = {"kind": "gpu", "sm_count": card.sms, "cpu_cores": CORES,
            "compute_capability": ".".join(map(str, card.capability))}  # fmt: skip
    slow_script.machine = lambda: SimpleNamespace(**here)
    for record in course_records.wanted("gpu"):
        claim = next((c for name, c in RECORDS.items() if f"{record.name} ".startswith(name)), "")
        if isinstance(record.spec, Pipeline):
            yield Claimed(f"record {record.name}", record.spec, claim)
        elif "launches" in getattr(record.spec, "fixes", ()):  # before: loops in Python, on purpose
            script = record.spec
            yield Claimed(f"record {record.name}", script.pipeline, claim, fixes=script.fixes)
    for key, task in all_tasks().items():
        posed = isinstance(getattr(task, "base", None), Pipeline)
        if posed and not (task.needs and task.needs(SimpleNamespace(**here))):
            for part, claim in zip(("base", "solution"), EXERCISES.get(key, ("", "")), strict=True):
                yield Claimed(f"exercise {key} {part}", getattr(task, part), claim)
    yield from of_faults(base)


def of_faults(base: dict[str, Any]) -> Iterator[Claimed]:
    """Yield every planted fault and healthy pipeline that can show on a card."""
    here = faultset.Here(base, Machine(kind="gpu"))
    for fault in (each.on("gpu") for each in faultset.EVERYTHING):
        if here.cannot_show(fault):
            continue
        for severity in SEVERITIES:
            case = faultset.Case(fault, severity, 0, base)
            label = f"fault {fault.name}, severity {severity}"
            claim = "device" if fault.name == "unaligned size" else fault.expected  # not modelled
            costs = severity == max(SEVERITIES) and claim not in ("compute", "device")
            cured = case.cured if costs else None
            yield Claimed(label, case.pipeline, claim, case.planted, cured=cured)


# -- experiments -------------------------------------------------------------------------------

NO_REGIME = {
    "anatomy": "reads facts", "one_thread": "a kernel of stated length",
    "number_formats": "arithmetic", "autocast_types": "asks for dtypes", "underflow": "arithmetic",
    "graph_breaks": "counts captures", "memory_parts": "counts bytes", "batch_fits": "counts bytes",
    "lr_scaling": "losses", "accumulation": "arithmetic", "item_ladder": "times the host's work",
    "worker_memory": "counts bytes", "epoch_start": "times the host's work",
    "exercise": "answers work on the CPU",
}  # fmt: skip
INSTEAD = {  # parameters that make it quicker, and as telling
    "copies": {"mib": 16, "pieces": [1, 1024]}, "batch_path": {"mib": 8},
    "accumulation_cost": {"effective": 4, "width": 64, "depth": 2},
}  # fmt: skip
STUBS = {  # what a module of an experiment calls that the stand-in has not
    "relative_error": lambda *_: 0.0,  # of numbers
    "cuda_graph": lambda work, *_: work,
}
PART_OF: dict[str, Callable] = {  # Triton's own kernel cannot run: PyTorch's side
    "own_kernel": lambda module: lambda _, bench: module.time_it(lambda a, b, c: a + b + c, bench)
}
OPERATIONS: list[tuple[str, str, Callable[[dict], bool], str]] = [
    ("matrix_products", "one by one", lambda case: True, "launch"),
    ("copies", "", lambda case: case["pieces"] == 1, "transfer"),
    ("copies", "", lambda case: case["pieces"] > 1000, "launch"),
    ("bandwidth", "", lambda case: case["array_bytes"] >= 2**26, "memory"),
    ("eager_chain", "", lambda case: True, "memory"),
    ("matrix_rates", "", lambda case: True, "compute"),
    ("matrix_slices", "at once", lambda case: True, "compute"),
    ("matrix_slices", "in slices", lambda case: case["slices"] > 1000, "not compute"),
    ("matrix_slices", "32 small ones", lambda case: True, "launch"),
    ("matrix_sizes", "", lambda case: True, "compute"),
    ("roofline", "", lambda case: case.get("roof") == "bandwidth", "memory"),
    ("roofline", "", lambda case: case.get("roof") == "compute", "compute"),
    ("roofline", "add", lambda case: True, "memory"),
    ("roofline", "layer norm", lambda case: True, "memory"),
    ("precision_matmul", "", lambda case: True, "compute"),
    ("fusion", "tiny", lambda case: True, "launch"),
    ("fusion", "as written", lambda case: True, "memory"),
    ("fusion", "eager", lambda case: case["mib"] >= 64, "memory"),
    ("own_kernel", "", lambda case: True, "memory"),
    ("batch_path", "device memory", lambda case: True, "memory"),
    ("batch_path", "arithmetic", lambda case: True, "compute"),
    ("batch_path", "RAM to device", lambda case: True, "transfer"),
]


def of_point(experiment: str, of: str, case: dict[str, Any]) -> str:
    """Return what is claimed of a point of an experiment, or ""."""
    for name, operation, applies, claim in OPERATIONS:
        if name == experiment and operation in ("", of) and applies(case):
            return claim
    return ""
