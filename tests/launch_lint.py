"""The launch lint: what a step of everything in the course asks of a card, and what limits it.

    python tests/launch_lint.py            print where a claim and a card differ
    python tests/launch_lint.py --write    make launch_lint.jsonl anew, and print the same
    python tests/launch_lint.py --json T4  its lines for some cards, for the test

What the host does in a step does not depend on the card: it is recorded once, on the stand-in and
without numbers, and replayed for each card. A default pipeline has the depth that its calibration
would find.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import standin_gpu
import torch
from standin_gpu import CARDS, LAUNCH_US, SHORTEST_KERNEL_US, Card, StandIn, VirtualClock

from labkit.analysis.thresholds import FUSION_SAVES, TENSOR_CORE_GAIN, WORTH_NAMING
from labkit.bench import loop, model_size
from labkit.bench.profile import ELEMENTWISE
from labkit.bench.resolve_config import resolve_config
from labkit.course import faultset, slow_faults, slow_script, slow_script_train
from labkit.course import record as course_records
from labkit.course.task import all_tasks
from labkit.results.machine import Machine
from labkit.spec import Pipeline

TABLE = Path(__file__).with_suffix(".jsonl")
DEVICE = torch.device("cuda", 0)
CORES = 16  # of the machine that the card is in
MARGIN = 2.0  # times its launches, at least, for what is claimed to keep the card busy
COSTS = 0.2  # of its time, at least, of the worst severity: so that a figure can show it
DEVICE_BOUND = ("compute", "precision", "memory_bandwidth")

# -- what is claimed -------------------------------------------------------------------------------
# What the diagnosis names, or "starved" (it waits for data, if something else costs more), or
# "device" (the card is the limit, in whatever way), or "" for nothing.

CLAIMS = {  # by the beginning of a label
    "default mlp array": "device", "default cnn array": "device",
    "default transformer array": "device", "default": "input",
    "record workers-0": "starved", "record decode-0": "starved", "record textbook-0": "starved",
    "record textbook-1 ": "starved", "record stall-2": "starved", "record batch-64": "device",
    "record batch-256": "device", "record precision-fp32": "precision",
    "record precision-": "device", "record compile-off": "launch",
    "record capstone-4": "precision", "record capstone-5": "memory_bandwidth",
    "record capstone-6": "device", "exercise 00-first base": "starved",
    "exercise 02-feed base": "starved", "exercise 03-stalls base": "starved",
    "exercise 04-knee": "launch",
}  # fmt: skip
# The host's own work, as measured on a 2 GHz core of a server, good to a factor of 2
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


class Case(NamedTuple):
    """A pipeline, and what is claimed of it."""

    label: str
    pipeline: Pipeline
    claim: str = ""
    planted: str | None = None
    fixes: tuple[str, ...] | None = None  # of the slow script
    cured: Pipeline | None = None  # without the fault: it has to cost `COSTS`


def cases(card: Card, base: dict[str, Any]) -> Iterator[Case]:
    """Yield every pipeline of the course for a card; `base` is the one of its fault set."""
    here = SimpleNamespace(kind="gpu", sm_count=card.sms, cpu_cores=CORES,
                           compute_capability=".".join(map(str, card.capability)))  # fmt: skip
    slow_script.machine = lambda: here
    found = [(f"default {model} {dataset}", Pipeline(model=model, dataset=dataset), None)
             for model in ("mlp", "cnn", "transformer")
             for dataset in ("jpeg", "array", "sleep")]  # fmt: skip
    for record in course_records.wanted("gpu"):
        if isinstance(record.spec, Pipeline):
            found.append((f"record {record.name}", record.spec, None))
        elif "launches" in getattr(record.spec, "fixes", ()):  # before: loops in Python, on purpose
            found.append((f"record {record.name}", record.spec.pipeline, record.spec.fixes))
    for key, task in all_tasks().items():
        posed = isinstance(getattr(task, "base", None), Pipeline)
        if posed and not (task.cpu_only and here.kind != "cpu"):
            found += [(f"exercise {key} {part}", getattr(task, part), None)
                      for part in ("base", "solution")]  # fmt: skip
    for label, pipeline, fixes in found:
        claim = next((c for start, c in CLAIMS.items() if f"{label} ".startswith(start)), "")
        yield Case(label, pipeline, claim, fixes=fixes)
    shown = faultset.Here(base, Machine(kind="gpu"))
    for fault in (each.on("gpu") for each in faultset.EVERYTHING):
        for severity in () if shown.cannot_show(fault) else (1, 4):  # the mildest and the worst
            case = faultset.Case(fault, severity, 0, base)
            claim = "device" if fault.name == "unaligned size" else fault.expected  # not modelled
            costs = severity == 4 and claim not in ("compute", "device")
            yield Case(f"fault {fault.name}, severity {severity}", case.pipeline, claim,
                       case.planted, cured=case.cured if costs else None)  # fmt: skip


def parts(planted: str | None) -> list[tuple[str, int]]:
    """Return the faults and amounts of a text such as "python_heavy@40+checkpoint@8"."""
    each = (part.partition("@") for part in (planted or "").split("+") if part)
    return [(name, int(float(amount))) for name, _, amount in each]


def loader_us(job: Any, planted: str | None) -> float:
    """Return what a batch costs in one process of the loader."""
    item_us = (250 + 200 * job.augment) * (job.image_px / 48) ** 2 if job.dataset == "jpeg" else 0.0
    extra = sum(ITEM_US[name](n, item_us) for name, n in parts(planted) if name in ITEM_US)
    batch_us = 100 + job.batch_size * (item_us + 1e3 * job.io_ms + extra)
    batch_us += 3 * job.image_px**2 * job.batch_size / 2e3 * (job.dataset == "array")  # 2 GB/s
    return batch_us + 1e3 * job.prep_ms * (job.dataset == "sleep")


# -- a step, written down, and its way through the queue of any card -------------------------------


class Op(NamedTuple):
    """One thing that the host does in a step."""

    # "load" a batch, "copied", "computed": where the step is. "host": own work. "wait" for the card
    does: str  # or "kernel", "copy": a launch
    name: str = ""
    us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    format: str = ""  # of a kernel's arithmetic

    def on(self, card: Card) -> tuple[str, float]:
        """Return what bounds it on the card, and its time there, us."""
        if self.does == "copy":
            return "transfer", SHORTEST_KERNEL_US + self.bytes / (card.bus_gb_per_s * 1e3)
        if not self.flops + self.bytes:
            return "compute", self.us  # of stated length
        arithmetic = StandIn.kernel_us(card, self.flops, 0.0, self.format)
        traffic = StandIn.kernel_us(card, 0.0, self.bytes)
        by_flops = self.flops and arithmetic >= traffic
        return "compute" if by_flops else "memory", max(arithmetic, traffic)


class Step(NamedTuple):
    """What the host does in one step, or a few, and what its loader takes."""

    ops: list[Op]
    loader_us: float = 0.0  # a batch, in one process
    workers: int = 0
    side: bool = False  # copies go on a stream of their own
    stall_us: float = 0.0  # of one batch in `stall_every`; `ahead` batches wait in the queue
    stall_every: int = 1
    ahead: int = 0
    precision: str = ""

    @property
    def count(self) -> int:
        return max(1, sum(op.does == "load" for op in self.ops))


@contextlib.contextmanager
def recorded(gpu: StandIn) -> Iterator[list[Op]]:
    """Write down what the host does meanwhile."""
    ops: list[Op] = []
    launching = False

    def enqueue(*args, **settings) -> int:
        nonlocal launching
        launching = True
        end = StandIn.enqueue(gpu, *args, **settings)
        launching, sent = False, gpu.kernels[-1]
        does, us = "copy" if sent.is_copy else "kernel", (end - sent.start) / 1e3
        ops.append(Op(does, sent.name, us, sent.flops, sent.bytes, sent.format))
        return end

    def spend(us: float) -> None:
        ops.extend([Op("host", us=us)] * (not launching))
        VirtualClock.spend(gpu.clock, us)

    def wait_until(ns: int) -> None:
        ops.extend([Op("wait")] * (not launching))
        VirtualClock.wait_until(gpu.clock, ns)

    with (
        mock.patch.object(gpu, "enqueue", enqueue),
        mock.patch.multiple(gpu.clock, spend=spend, wait_until=wait_until),
    ):
        yield ops
    gpu.kernels.clear()


def replayed(step: Step, card: Card) -> Counter:
    """Return where the device's time of one step goes on the card, us.

    "compute" and "memory" are kernels, by what bounds them, "transfer" is a batch's copies, and an
    idle device waits for "input", "transfer" or "launch" (the host). "elementwise" is a part of
    memory, "fp32" of compute. Of three rounds the last counts: by then the host is ahead, where it
    can be.
    """
    host = free = bus = ready = 0.0
    bare = not any(op.does == "load" for op in step.ops)  # operators, no training step
    on_card = functools.cache(lambda op: op.on(card))
    for _ in range(3):
        spent: Counter = Counter()
        loading, copied, computing = (0.0, 0.0), 0.0, bare
        for op in step.ops:
            if op.does == "load":
                ready = ready + step.loader_us / step.workers if step.workers else (
                    host + step.loader_us)  # fmt: skip
                loading, copied = (host, max(host, ready)), float("inf")
                host = loading[1]
            elif op.does == "copied":
                copied, computing = host, True
            elif op.does == "computed":
                computing = False
            elif op.does == "host":
                host += op.us
            elif op.does == "wait":
                host = max(host, free, bus)
            else:
                host += LAUNCH_US
                bound, us = on_card(op)
                of_batch = op.does == "copy" and (bare or host < copied)
                if of_batch and step.side:
                    bus = max(bus, host) + us
                    continue
                start = max(free, host, bus)
                waits = overlap((free, start), loading)
                copies = overlap((free, start), (loading[1], copied)) if not bare else 0.0
                copies += max(0.0, bus - max(free, host))
                spent["input"] += waits
                spent["transfer"] += copies
                spent["launch"] += start - free - waits - copies
                part_of_it = of_batch or (computing and bound != "transfer")
                spent[bound if part_of_it else "launch"] += us
                if bound == "memory" and ELEMENTWISE.search(f"aten::{op.name}"):
                    spent["elementwise"] += us
                spent["fp32"] += us * (bound == "compute" and op.format == "fp32")
                free = start + us
    spent = Counter({name: us / step.count for name, us in spent.items()})
    spent["input"] += max(0.0, step.stall_us - step.ahead * period_us(spent)) / step.stall_every
    return spent


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def period_us(spent: Counter) -> float:
    return sum(spent[name] for name in ("compute", "memory", "transfer", "input", "launch"))


def diagnosed(spent: Counter, bf16_speedup: float | None) -> str:
    """Return what labkit's rules name of a run whose device spends its time like that.

    `bf16_speedup` is None where it cannot be measured; then kernels' names tell of FP32.
    """
    period = period_us(spent)
    losses = {name: spent[name] / period for name in ("input", "transfer", "launch")}
    losses["memory_bandwidth"] = FUSION_SAVES * spent["elementwise"] / period
    if bf16_speedup is None:
        losses["precision"] = (1 - 1 / TENSOR_CORE_GAIN) * spent["fp32"] / period
    else:
        on_card = (spent["compute"] + spent["memory"]) / period
        losses["precision"] = max(0.0, 1 - 1 / bf16_speedup) * on_card
    named = {name: lost for name, lost in losses.items() if lost >= WORTH_NAMING[name]}
    return max(named, key=named.get, default="compute")


# -- the table -------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """What the table says of a step on a card."""

    regime: str  # what limits it
    over_launches: float = 0.0  # the card's time over that of its launches
    waiting: float = 0.0  # for data, share of the time
    costs: float | None = None  # the planted fault, share of the time

    def shows(self, claim: str) -> bool:
        if claim == "starved":
            right = self.waiting >= WORTH_NAMING["input"]
        else:
            right = self.regime in (DEVICE_BOUND if claim == "device" else (claim or self.regime,))
        if claim in (*DEVICE_BOUND, "device"):
            right = right and self.over_launches >= MARGIN
        right = right and (self.costs is None or self.costs >= COSTS)
        return right and self.regime != "out of memory"


class Lint:
    """Runs everything on the stand-in, each step once."""

    def __init__(self, gpu: StandIn):
        self.gpu, self.card, self.kept = gpu, gpu.cards[0], {}
        model_size.time_step = self.step_ms
        faultset.machine, faultset.finished = lambda: SimpleNamespace(kind="gpu"), self.finished

    def table(self, names: list[str]) -> dict[str, dict]:
        rows: dict[str, dict] = {}
        for name in names:
            self.gpu.cards, self.card = (CARDS[name],), CARDS[name]
            for case in cases(self.card, faultset.base_here().base):
                rows.setdefault(case.label, {"claim": case.claim})[name] = self.of_pipeline(case)
        return rows

    def of_pipeline(self, case: Case) -> Cell:
        try:
            step, costs = self.step(case), None
            spent = replayed(step, self.card)
            speedup = self.bf16_speedup(case, step) if case.claim != "input" else 1.0
            if case.cured:
                well = replayed(self.step(Case("", case.cured)), self.card)
                more = case.pipeline.batch_size / case.cured.batch_size  # samples
                costs = 1 - more * period_us(well) / period_us(spent)
            on_card = spent["compute"] + spent["memory"] + spent["transfer"]
            launching = LAUNCH_US * sum(op.does in ("kernel", "copy") for op in step.ops)
            numbers = on_card * step.count / launching, spent["input"] / period_us(spent), costs
            rounded = (None if x is None else float(f"{x:.3g}") for x in numbers)
            return Cell(diagnosed(spent, speedup), *rounded)
        except torch.OutOfMemoryError:
            return Cell("out of memory")

    def fed_us(self, step: Step) -> float:
        return period_us(replayed(step._replace(loader_us=0.0, stall_us=0.0), self.card))

    def bf16_speedup(self, case: Case, step: Step) -> float | None:
        """Return what the run would measure of its step in BF16; 1 where it is not in FP32."""
        if step.precision != "fp32":
            return 1.0
        if self.card.capability < (8, 0):
            return None
        in_bf16 = self.step(case._replace(pipeline=case.pipeline.but(precision="bf16")))
        return self.fed_us(step) / self.fed_us(in_bf16)

    def step(self, case: Case) -> Step:
        """Return a pipeline's step on this card; with torch.compile its eager side."""
        job, _ = resolve_config(case.pipeline.to_dict() | {"compile": None}, DEVICE)
        return Step(
            self.ops_of(job, case.planted, case.fixes), loader_us(job, case.planted),
            job.num_workers, job.prefetch_to_device, 1e3 * job.stall_ms, job.stall_every,
            job.num_workers * (job.prefetch_factor or 0), job.precision,
        )  # fmt: skip

    def ops_of(self, job: Any, planted: str | None = None, fixes: tuple | None = None) -> list[Op]:
        """Return what the host does in as many steps as show every fault, recorded once."""
        faults = [each for each in parts(planted) if each[0] not in ITEM_US]
        key = (job.model, job.width, job.depth, job.image_px, job.batch_size, job.precision,
               job.channels_last, job.fused_optimizer, job.accumulation_steps,
               job.prefetch_to_device, job.non_blocking, *faults, fixes)  # fmt: skip
        if key in self.kept:
            return self.kept[key]
        scripted = fixes is not None
        trainer = (slow_script_train.SlowTrainer if scripted else loop.Trainer)(
            job, DEVICE, *([fixes] if scripted else [])
        )
        host_us = sum(HOST_US[name](amount) for name, amount in faults if name in HOST_US)
        for name, amount in faults:
            if name not in ONLY_HOST:
                slow_faults.plant_all(f"{name}@{amount}", None, trainer)
        every = 5 if any(name == "evaluate" for name, _ in faults) else job.accumulation_steps
        batch = torch.zeros(job.batch_size, 3, job.image_px, job.image_px, dtype=torch.uint8)
        batch = batch, torch.zeros(job.batch_size, dtype=torch.int64)
        if job.non_blocking:
            batch = tuple(tensor.pin_memory() for tensor in batch)
        place = trainer.on_side_stream if trainer.side_stream else contextlib.nullcontext
        for parameter in trainer.model.parameters():  # as in a first step: the optimizer's state
            parameter.grad = torch.zeros_like(parameter)
        trainer.scaler.scale(torch.zeros((), device=DEVICE))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        with recorded(self.gpu) as ops:
            for i in range(every):
                ops.append(Op("load"))
                with place():
                    ready = trainer.to_device(*batch)
                ops += [Op("copied"), Op("host", us=host_us)]
                trainer.compute(*ready, update=(i + 1) % job.accumulation_steps == 0)
                ops.append(Op("computed"))
                trainer.after_step()
        self.kept[key] = ops
        return ops

    def step_ms(self, model: str, width: int, depth: int, image_px: int, _: Any) -> float:
        """Stand in for the clock of the calibration."""
        job = model_size.plain_job(DEVICE, model=model, width=width, depth=depth, image_px=image_px)
        return period_us(replayed(Step(self.ops_of(job)), self.card)) / 1e3

    def finished(self, pipeline: Pipeline) -> SimpleNamespace:
        """Stand in for a run that the fault set finds its base with."""
        case = Case("", pipeline)
        step = self.step(case)
        facts = {"bf16_speedup": self.bf16_speedup(case, step)}
        return SimpleNamespace(median_compute_ms=self.fed_us(step) / 1e3, xray_facts=facts,
                               pipeline=pipeline, machine=SimpleNamespace(kind="gpu"))  # fmt: skip


def stored(text: str) -> dict[str, dict[str, Any]]:
    """Return the table that a text holds: {label: {"claim": claim, card: cell}}."""
    rows = {line.pop("step"): line for line in map(json.loads, text.splitlines()[1:])}
    return {
        label: {name: Cell(*x) if isinstance(x, list) else x for name, x in row.items()}
        for label, row in rows.items()
    }


def differing(table: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{label}: claimed {row['claim'] or 'nothing'}, {name}: {shown}"
        for label, row in table.items()
        for name, shown in row.items()
        if name != "claim" and not shown.shows(row["claim"])
    ]


if __name__ == "__main__":
    option, names = "".join(sys.argv[1:2]), sys.argv[2:] or list(CARDS)
    os.chdir(tempfile.mkdtemp())  # some faults write files
    os.environ["LABKIT_HOME"] = os.getcwd()
    with standin_gpu.installed(CARDS[names[0]], numbers=False) as gpu:
        table = Lint(gpu).table(names)
    lines = [{"torch": torch.__version__}, *({"step": label} | row for label, row in table.items())]
    text = "\n".join(map(json.dumps, lines)) + "\n"
    if option == "--write":
        TABLE.write_text(text, encoding="utf-8")
    print(text if option == "--json" else "\n".join(differing(table)), end="")
