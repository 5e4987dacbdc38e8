"""The launch lint: what a step of everything in the course asks of a card, and what limits it.

    python tests/launch_lint.py            print where a claim and a card differ
    python tests/launch_lint.py --write    make launch_lint.jsonl anew, and print the same
    python tests/launch_lint.py --json T4  its lines for some cards, for the test

Everything runs on the stand-in, without numbers, so that any size is quick (`launch_replay`); what
is claimed is in `launch_claims`. A default pipeline has the depth that its calibration would find.
A line of the table is a step: its claim, and per card what limits it there, the card's time over
that of its launches, the share of waiting for data, and what a planted fault costs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import launch_claims as claims
import standin_gpu
import torch
from launch_claims import Claimed
from launch_replay import Op, Step, bound_by, diagnosed, period_us, recorded, replayed
from standin_gpu import CARDS, LAUNCH_US, StandIn

from labkit.analysis.thresholds import WORTH_NAMING
from labkit.bench import loop, model_size
from labkit.bench.resolve_config import resolve_config
from labkit.bench.workbench import Workbench, job_of
from labkit.course import faultset, slow_faults, slow_script_train
from labkit.experiments import EXPERIMENTS
from labkit.spec import Pipeline

TABLE = Path(__file__).with_suffix(".jsonl")
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
DEVICE = torch.device("cuda", 0)
MARGIN = 2.0  # times its launches, at least, for what is claimed to keep the card busy
DEVICE_BOUND = ("compute", "precision", "memory_bandwidth")
IN_A_STEP = (  # the knobs that a recorded step depends on
    "model", "width", "depth", "image_px", "batch_size", "precision", "channels_last",
    "fused_optimizer", "accumulation_steps", "prefetch_to_device", "non_blocking",
)  # fmt: skip
Row = dict[str, Any]


class Lint:
    """Runs everything on the stand-in, each step once."""

    def __init__(self, gpu: StandIn):
        self.gpu, self.card, self.kept = gpu, gpu.cards[0], {}
        model_size.time_step = self.step_ms
        faultset.machine, faultset.finished = lambda: SimpleNamespace(kind="gpu"), self.finished

    def rows(self, names: list[str]) -> Iterator[Row]:
        """Yield a row for every step and card."""
        for name in names:
            self.gpu.cards, self.card = (CARDS[name],), CARDS[name]
            for claimed in claims.pipelines(self.card, faultset.base_here().base):
                yield {"card": name, "label": claimed.label, **self.of_pipeline(claimed)}
            for experiment, params in measured():
                for label, claim, step in points(self.gpu, experiment, params):
                    spent = replayed(step, self.card)
                    regime = bound_by(spent, step.totals[0])
                    yield {"card": name, "label": label, **row(claim, step, spent, regime)}

    def of_pipeline(self, claimed: Claimed) -> Row:
        """Record a pipeline's step, and diagnose it on this card."""
        try:
            step = self.step(claimed)
            spent = replayed(step, self.card)
            speedup = self.bf16_speedup(claimed, step) if claimed.claim != "input" else 1.0
            found = row(claimed.claim, step, spent, diagnosed(spent, speedup))
            if claimed.cured:
                well = replayed(self.step(Claimed("", claimed.cured)), self.card)
                more = claimed.pipeline.batch_size / claimed.cured.batch_size  # samples
                found["costs"] = 1 - more * period_us(well) / period_us(spent)
            return found
        except torch.OutOfMemoryError:
            return row(claimed.claim, Step([]), {}, "out of memory")

    def bf16_speedup(self, claimed: Claimed, step: Step) -> float | None:
        """What the run would measure of its step in BF16; 1 where it is not in FP32."""
        if self.job(claimed).precision != "fp32":
            return 1.0
        if self.card.capability < (8, 0):
            return None
        in_bf16 = Claimed("", claimed.pipeline.but(precision="bf16"), "", claimed.planted,
                          claimed.fixes)  # fmt: skip
        times = (period_us(replayed(each.fed, self.card)) for each in (step, self.step(in_bf16)))
        return next(times) / next(times)

    def step(self, claimed: Claimed) -> Step:
        """Return a pipeline's step as it is on this card."""
        job = self.job(claimed)
        return Step(
            self.ops_of(job, claimed.planted, claimed.fixes),
            claims.loader_us(job, claimed.planted), job.num_workers, job.prefetch_to_device,
            1e3 * job.stall_ms, job.stall_every, job.num_workers * (job.prefetch_factor or 0),
        )  # fmt: skip

    def job(self, claimed: Claimed) -> SimpleNamespace:
        """Return a pipeline as it runs on this card, but for torch.compile: its eager side."""
        job, _ = resolve_config(claimed.pipeline.to_dict() | {"compile": None}, DEVICE)
        return job

    def ops_of(self, job: Any, planted: str | None = None, fixes: tuple | None = None) -> list[Op]:
        """What the host does in a step of a job, recorded once."""
        faults = tuple(each for each in claims.parts(planted) if each[0] not in claims.ITEM_US)
        key = *(getattr(job, name) for name in IN_A_STEP), faults, fixes
        if key not in self.kept:
            self.kept[key] = self.record(job, faults, fixes)
        return self.kept[key]

    def record(self, job: Any, faults: tuple, fixes: tuple | None) -> list[Op]:
        """Run a step of a job, or as many as make one update and show every fault."""
        if fixes is None:
            trainer = loop.Trainer(job, DEVICE)
        else:
            trainer = slow_script_train.SlowTrainer(job, DEVICE, fixes)
        host_us = sum(claims.HOST_US.get(name, lambda _: 0.0)(amount) for name, amount in faults)
        for name, amount in faults:
            if name not in claims.ONLY_HOST:
                slow_faults.plant(name, amount, None, trainer)
        every = 5 if any(name == "evaluate" for name, _ in faults) else job.accumulation_steps
        batch = torch.zeros(job.batch_size, 3, job.image_px, job.image_px, dtype=torch.uint8)
        batch = batch, torch.zeros(job.batch_size, dtype=torch.int64)
        if job.non_blocking:
            batch = tuple(tensor.pin_memory() for tensor in batch)
        place = trainer.on_side_stream if trainer.side_stream else contextlib.nullcontext
        fill_state(trainer)
        with recorded(self.gpu) as ops:
            for i in range(every):
                ops.append(Op("load"))
                with place():
                    ready = trainer.to_device(*batch)
                ops += [Op("copied"), Op("host", us=host_us)]
                trainer.compute(*ready, update=(i + 1) % job.accumulation_steps == 0)
                ops.append(Op("computed"))
                trainer.after_step()
        return ops

    def step_ms(self, model: str, width: int, depth: int, image_px: int, _: Any) -> float:
        """Stand in for the clock of the calibration."""
        job = model_size.plain_job(DEVICE, model=model, width=width, depth=depth, image_px=image_px)
        return period_us(replayed(Step(self.ops_of(job)), self.card)) / 1e3

    def finished(self, pipeline: Pipeline) -> SimpleNamespace:
        """Stand in for a run that the fault set finds its base with."""
        claimed = Claimed("", pipeline)
        step = self.step(claimed)
        return SimpleNamespace(
            compute_ms=period_us(replayed(step.fed, self.card)) / 1e3,
            xray_facts={"bf16_speedup": self.bf16_speedup(claimed, step)},
            pipeline=claimed.pipeline, machine=SimpleNamespace(kind="gpu"),
        )  # fmt: skip


def row(claim: str, step: Step, spent: Any, regime: str) -> Row:
    """Return what the table says of a step on a card."""
    on_card = sum(spent[name] for name in ("compute", "memory", "transfer")) if spent else 0.0
    return {
        "claim": claim, "regime": regime,
        "over_launches": on_card / (LAUNCH_US * step.totals[0]) if step.ops else 0.0,
        "waiting": spent["input"] / period_us(spent) if spent else 0.0, "costs": None,
    }  # fmt: skip


def fill_state(trainer: Any) -> None:
    """Have the optimizer make its state, as in a first step."""
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.scaler.scale(torch.zeros((), device=DEVICE))
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)


def wrong(row: Row) -> str | None:
    """Say how a card differs from what is claimed, or None."""
    claim, regime = row["claim"], row["regime"]
    if claim == "starved":
        right = row["waiting"] >= WORTH_NAMING["input"]
    elif claim.startswith("not "):
        right = regime != claim[4:]
    else:
        right = regime in (DEVICE_BOUND if claim == "device" else (claim or regime,))
    if claim in (*DEVICE_BOUND, "device", "memory"):
        right = right and row["over_launches"] >= MARGIN
    if row["costs"] is not None:
        right = right and row["costs"] >= claims.COSTS
    if right and regime != "out of memory":
        return None
    return f"{row['label']}: claimed {claim or 'nothing'}, {row['card']}: {row}"


def table(rows: list[Row]) -> str:
    """Return the rows as lines of JSON: one for the version of PyTorch, and one for every step."""
    steps: dict[str, dict[str, Any]] = {}
    for each in rows:
        line = steps.setdefault(each["label"], {"step": each["label"], "claim": each["claim"]})
        numbers = (each["over_launches"], each["waiting"], each["costs"])
        rounded = [None if number is None else float(f"{number:.3g}") for number in numbers]
        line[each["card"]] = [each["regime"], *rounded]
    return "\n".join(map(json.dumps, [{"torch": torch.__version__}, *steps.values()])) + "\n"


def parsed(text: str) -> dict[tuple[str, str], Row]:
    """Return the rows of a table by label and card."""
    rows = {}
    for line in map(json.loads, text.splitlines()[1:]):
        label, claim = line.pop("step"), line.pop("claim")
        for card, cell in line.items():
            told = dict(zip(("regime", "over_launches", "waiting", "costs"), cell, strict=True))
            rows[label, card] = {"label": label, "card": card, "claim": claim, **told}
    return rows


# -- experiments: the points that one times on the card, each recorded once -----------------------


def points(gpu: StandIn, experiment: str, params: dict) -> Iterator[tuple[str, str, Step]]:
    """Run an experiment; yield (label, claim, step) of each point that the card worked for."""
    module, bench = sys.modules[EXPERIMENTS[experiment].module], LintBench(gpu)
    with contextlib.ExitStack() as undo:
        for name, stub in claims.STUBS.items():
            if hasattr(module, name):
                undo.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, stub)
        if experiment == "precision_matmul":  # its exact product takes a CPU seconds
            undo.enter_context(torch.device("meta"))
        part = claims.PART_OF.get(experiment)
        measure = part(module) if part else EXPERIMENTS[experiment].measure
        measure(job_of(experiment, params), bench)
    asked = ", ".join(f"{name}={value}" for name, value in params.items())
    for of, case, step in bench.points:
        about = ", ".join(f"{n}={value}" for n, value in case.items() if n != "multiple")
        label = f"experiment {experiment}({asked}): {of} {about}".strip()
        yield label, claims.of_point(experiment, of, case), step


def measured() -> Iterator[tuple[str, dict]]:
    """Yield (experiment, parameters) of what is timed, by default and in notebooks."""
    seen = []
    for name, params in [*((name, {}) for name in EXPERIMENTS), *in_notebooks()]:
        case = name, params | claims.INSTEAD.get(name, {})
        if name not in claims.NO_REGIME and case not in seen:
            seen.append(case)
            yield case


def in_notebooks() -> Iterator[tuple[str, dict]]:
    """Yield (experiment, parameters) of every `lk.measure("NAME", ...)` in the notebooks."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        for node in (node for source in code for node in ast.walk(ast.parse(source))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "lk.measure":
                fixed = (k for k in node.keywords if isinstance(k.value, (ast.Constant, ast.List)))
                params = {k.arg: ast.literal_eval(k.value) for k in fixed if k.arg != "plot"}
                yield ast.literal_eval(node.args[0]), params


class Timed(list):
    """The seconds of a point, and what was recorded of it."""


class LintBench(Workbench):
    """A workbench that records one call instead of timing many."""

    def __init__(self, gpu: StandIn):
        super().__init__(DEVICE, None, lambda *_: None)
        self.gpu, self.points = gpu, []

    def once(self, work: Callable[[], Any]) -> Timed:
        """Call `work`, recorded."""
        with recorded(self.gpu) as ops:
            work()
        timed = Timed([1.0])
        timed.step = Step(ops)
        return timed

    def time(self, work: Callable[[], Any], *, of: str, **case: Any) -> float:
        """Record a call as a point."""
        self.write(of, seconds=self.once(work), **case)
        return 1.0

    def in_turn(self, ways: dict[str, Callable], *_: Any, **__: Any) -> dict[str, Timed]:
        """Record a call of each way; they are written by name later."""
        return {name: self.once(work) for name, work in ways.items()}

    def write(self, of: str, *, seconds: Any = (), **case: Any) -> None:
        """Keep the point, if it was timed and the card had something to do."""
        unsaid = ("flops", "bytes", "values", "min_time_s", "launches")
        case = {name: value for name, value in case.items() if name not in unsaid}
        if isinstance(seconds, Timed) and seconds.step.totals[0]:
            self.points.append((of, case, seconds.step))

    def compile_lacks(self) -> str:
        """Only the eager side is recorded."""
        return "the eager side only"

    def skip(self, what: str, why: str) -> None:
        """Nothing was recorded."""


# -- all of it -------------------------------------------------------------------------------------


def everything(names: list[str]) -> list[Row]:
    """Return all rows for these cards."""
    os.chdir(tempfile.mkdtemp())  # some faults write files
    model_size.kept_in = Path.cwd()
    with standin_gpu.installed(CARDS[names[0]], numbers=False) as gpu:
        return list(Lint(gpu).rows(names))


if __name__ == "__main__":
    options, chosen = sys.argv[1:2], sys.argv[2:] or list(CARDS)
    found = everything(chosen)
    if options == ["--json"]:
        print(table(found), end="")
    else:
        if options == ["--write"]:
            TABLE.write_text(table(found), encoding="utf-8")
        print("\n".join(filter(None, map(wrong, found))))
