"""The notebooks' own cells, on a machine with a stand-in GPU: what would its owner see?

    python tests/notebooks_on_card.py H200    {"H200": {"sawtooth-12": "held" (or why not), ...}}

Of each notebook the cells are run that assert something, or print what is checked, and those before
them that they need. Their `lk` is labkit, but for the one function that starts processes: `launch`
does the work in this one, on the card of `standin_gpu` and its virtual clock. A run there is the
real loop with the real timeline, cut to the steps that it takes to measure, and its log is read
like any other.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import standin_gpu
import standin_run
import torch

import labkit as lk
from labkit import show
from labkit.bench import machine, model_size, workbench
from labkit.course import slow_script as script_spec
from labkit.course import slow_script_train
from labkit.course.slow_script import SlowScript
from labkit.experiments import fusion, number_formats
from labkit.process.events import VERSION, EventLog
from labkit.results import launch as launcher
from labkit.results.machine import Machine
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.spec import Distributed, Experiment

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
CARD = torch.device("cuda", 0)
CORES = 8  # of the machine that the card is in
STEPS = 15  # of a run: three of warm-up and twelve to measure
FEW_STEPS = 3  # that are run where all others are the same
MORE_STEPS = 60  # where a window of a second is laid over the run
MANY_PIECES = 2000  # copies that are computed and not run
LEAN_MS, WASTEFUL_MS = 0.4, 6.0  # an item of the capstone's script, on a core
# Cells that assert nothing and are run all the same: they raise where runs cannot be compared
ALSO = {"ranks-16", "ranks-22", "ranks-30", "ranks-40"}
# Cells whose asserts no stand-in can answer
LEFT_OUT = {
    "5724252e": "asks for the reader's answer",
    "precision-12": "what numbers become in 16 bits: IEEE 754, on every device",
    "precision-28": "losses in 16 bits: the card's own arithmetic",
    "precision-44": "gradients in FP16: the card's own arithmetic",
    "batch-31": "memory by part: which attention kernel runs, and keeps what, is the card's choice",
    "batch-45": "losses of real trainings: the card's own arithmetic",
    "accumulation-09": "rounding of sums: the card's own arithmetic",
    "accumulation-15": "errors of updates: the card's own arithmetic",
    "accumulation-33": "losses of real trainings: the card's own arithmetic",
    "compile-24": "what Dynamo captures: no device takes part",
    "compile-44": "sums of a Triton kernel: the card's own arithmetic",
}


# -- the cells ---------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A code cell; `prints` is what it has to print on every machine, None where that differs."""

    id: str
    source: str
    prints: str | None

    @property
    def asserts(self) -> bool:
        """Whether it claims something."""
        nodes = ast.walk(ast.parse(self.source))
        return self.prints is not None or any(isinstance(node, ast.Assert) for node in nodes)


def code_cells(path: Path) -> list[Cell]:
    """Return a notebook's code cells but the challenges, which are the reader's."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and "challenge" not in tags:
            printed = "".join(line for out in cell["outputs"] for line in out.get("text", []))
            checked = printed if "nbval-check-output" in tags and printed else None
            found.append(Cell(cell["id"], "".join(cell["source"]), checked))
    return found


def needed(cells: list[Cell]) -> list[Cell]:
    """Return the cells that assert, and before them those which bind what a kept one uses."""
    kept, wanted = [], set()
    for cell in reversed(cells):
        bound, used = names_of(ast.parse(cell.source))
        if (cell.asserts or cell.id in ALSO or bound & wanted) and cell.id not in LEFT_OUT:
            kept.append(cell)
            wanted = wanted - bound | used
    return kept[::-1]


def names_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a cell binds for others, and those that it uses; not a loop's own."""
    bound, used, loops = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            loops |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(name.asname or name.name).split(".")[0] for name in node.names}
        elif isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else used).add(node.id)
    return bound - loops, used - loops


def run_notebook(path: Path) -> Iterator[tuple[str, str]]:
    """Run what a notebook needs for its asserts; yield each cell, and "held" or what went wrong."""
    names: dict[str, Any] = {"display": lambda *_: None}
    for cell in needed(code_cells(path)):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                exec(compile(cell.source, f"{path.stem} {cell.id}", "exec"), names)
            how = "held"
            if cell.prints not in (None, said.getvalue()):
                how = f"printed\n{said.getvalue()}and has to print\n{cell.prints}"
        except Exception as error:
            how = "".join(traceback.format_exception(error)[-3:])
        yield cell.id, how


# -- the card's own launcher -------------------------------------------------------------------


class Card:
    """Does here, on the stand-in, what `launch` would have a process of its own do."""

    here: Card  # the one of this process

    def __init__(self, gpu: standin_gpu.StandIn):
        self.gpu, self.whole = gpu, gpu.cards
        self.machine = Machine.from_dict(machine.describe(CARD) | {"cpu_cores": CORES})

    def launch(self, spec: Any) -> Any:
        """Do what `spec` says; return what its log says of it."""
        gc.collect()  # a process of its own begins with an empty card
        torch.cuda.reset_peak_memory_stats()
        if isinstance(spec, Experiment):
            return self.measure(spec)
        if isinstance(spec, Distributed):
            return ranks_on(spec, cards=1)
        if isinstance(spec, SlowScript):
            return self.run(spec.pipeline, spec.fixes)
        return self.run(spec)

    def run(self, asked: lk.Pipeline, fixes: Any = None) -> Any:
        """Train as a bench does, for as many steps as it takes."""
        if asked.device == "cpu":
            return one_on(asked, "cpu")
        seconds_count = asked.steps > 100 and (asked.seconds or 0) > 4  # of a window of a second
        short = asked.but(steps=min(asked.steps, MORE_STEPS if seconds_count else STEPS))
        if fixes is None:
            return with_items(standin_run.run_on(self.gpu, short))
        folder = Path(tempfile.mkdtemp())
        usual = standin_run.Trainer, standin_run.batch_of
        standin_run.Trainer = functools.partial(
            slow_script_train.SlowTrainer, fixes=fixes, log=EventLog(folder)
        )
        standin_run.batch_of = functools.partial(blank_batch, as_bytes="copies" in fixes)
        prep_ms = asked.batch_size * (LEAN_MS if "items" in fixes else WASTEFUL_MS)
        few = short if asked.num_workers else short.but(steps=FEW_STEPS)
        try:
            run = standin_run.run_on(self.gpu, few, folder, prep_ms=prep_ms)
        finally:
            standin_run.Trainer, standin_run.batch_of = usual
        return repeated(run, short.steps)

    def measure(self, spec: Experiment) -> Measurements:
        """Measure on the card, each point by one call."""
        folder = Path(tempfile.mkdtemp())
        log = EventLog(folder)
        log.write("spec", version=VERSION, run="x", labkit="x", **spec.to_spec())
        log.write("machine", **machine.describe(CARD))
        workbench.perform(spec.to_spec(), CARD, folder, log, lambda *_: None)
        self.gpu.cards = self.whole
        log.write("done")
        log.write("end", stop=None, code=0)
        return Measurements(folder)

    def limit_memory(self, part: float, _device: Any) -> None:
        """Stand in for torch.cuda.set_per_process_memory_fraction."""
        self.gpu.cards = (self.whole[0]._replace(memory_gib=self.whole[0].memory_gib * part),)


class OneCall(workbench.Workbench):
    """A workbench that calls once: on the virtual clock every call takes the same."""

    def time(self, work, *, of, flops=None, bytes=None, min_time_s=0, launches=None, **case):
        """Time a call, or compute it where that is thousands of launches."""
        pieces = case.get("pieces", 1)
        if pieces > MANY_PIECES:
            bus = standin_gpu.GPU.cards[0].bus_gb_per_s * 1e9
            seconds = pieces * standin_gpu.LAUNCH_US / 1e6 + bytes / bus
        else:
            seconds = self.timed(work)
        share = self.launch_share(seconds, launches)
        self.write(of, seconds=[seconds], flops=flops, bytes=bytes, values=share, **case)
        return seconds

    def calls_to_fill(self, work):
        """One call."""
        return 1


def compiled_for_card(chain: Any, bench: Any) -> None:
    """Stand in for torch.compile: one kernel that reads every input and writes the result."""

    def fused(arrays: tuple, d: torch.Tensor) -> None:
        moved = chain.bytes(True, d.numel())
        gpu = standin_gpu.GPU
        gpu.enqueue("fused", 0, gpu.kernel_us(gpu.cards[0], 0.0, moved))

    chain.fused = fused


def repeated(run: Any, count: int) -> Any:
    """Return a run of so many steps, the last one again and again: without workers they are equal.

    (A step of the script as it came is 14,000 operators: a second of the stand-in's real time.)
    """
    before, last = run.steps_since(run.steps - 2)
    period = last["t"][0] - before["t"][0]
    more = [
        {k: [at + n * period for at in v] if isinstance(v, list) else v for k, v in last.items()}
        | {"i": last["i"] + n}
        for n in range(1, count - run.steps + 1)
    ]
    return with_events(run, more)


def blank_batch(job: Any, as_bytes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of black images, as the capstone's script gets it from its loader."""
    images = torch.zeros(job.batch_size, 3, job.image_px, job.image_px)
    batch = images.to(torch.uint8) if as_bytes else images, torch.zeros(len(images)).long()
    return tuple(tensor.pin_memory() if job.pin_memory else tensor for tensor in batch)


def with_items(run: Any) -> Any:
    """Return a run whose log also has what its items, and handing a batch over, took."""
    job, workers = run.pipeline, max(run.pipeline.num_workers, 1)
    cpu_us = 1e3 * standin_run.DECODE_MS if job.dataset == "jpeg" else 0.0
    wait_us = 1e3 * job.io_ms if job.dataset != "sleep" else 1e3 * job.prep_ms / job.batch_size
    each = [[us] * min(job.batch_size, 16) for us in (cpu_us, wait_us)]
    sums = [us * job.batch_size for us in (cpu_us, wait_us)]
    rows = [[i // workers, step["t"][0], job.batch_size, *sums, 0, 50, 0, 0, 0, *each]
            for i, step in enumerate(run.steps_since(0))]  # fmt: skip
    told = [{"event": "items", "worker": k if job.num_workers else -1, "rows": rows[k::workers]}
            for k in range(workers)]  # fmt: skip
    handed = dict.fromkeys(("main_wall_us", "worker_us", "share_us", "warm_us", "cold_us"), 100.0)
    told.append({"event": "handoff", "bytes": 6912 * job.batch_size} | handed)
    return with_events(run, told)


def with_events(run: Any, events: list[dict]) -> Any:
    """Return the run with more events before the end of its log."""
    log = run.path / "events.jsonl"
    *lines, end = log.read_text().splitlines()
    log.write_text("".join(f"{line}\n" for line in [*lines, *map(json.dumps, events), end]))
    return type(run)(run.path)


# -- ranks -------------------------------------------------------------------------------------


def ranks_on(spec: Distributed, cards: int) -> Ranks:
    """Return ranks as they would log, on cards where there is one for each, else on the CPU."""
    on_cards = spec.pipeline.device != "cpu" and cards >= spec.ranks
    device = "gpu" if on_cards else "cpu"
    why = {} if on_cards or cards == 0 else {"device": "each rank needs a CUDA device of its own"}
    head = {"event": "spec", "version": VERSION, "run": "ranks"}
    lines = [head | spec.to_spec(), MACHINES[device], DONE, END]
    prep_ms = [spec.starve.get(rank, {}).get("prep_ms", spec.pipeline.prep_ms or 0.1)
               for rank in range(spec.ranks)]  # fmt: skip
    for rank, steps in enumerate(rank_steps(spec, prep_ms, on_cards)):
        job = spec.pipeline.to_dict() | {"device": f"cuda:{rank}" if on_cards else "cpu"}
        place = {"rank": rank, "local_rank": rank, "world_size": spec.ranks}
        mine = head | {"pipeline": spec.pipeline.to_dict(), "place": place}
        events = [mine, {"event": "job", "pipeline": job, "not_applied": why},
                  {"event": "begin", "warmup": 3}, *steps, DONE]  # fmt: skip
        lines += [event | {"of_rank": rank} for event in events]
    return logged(lines)


def rank_steps(spec: Distributed, prep_ms: list[float], on_cards: bool) -> list[list[dict]]:
    """Return the step events of every rank: they leave each exchange of gradients together.

    A rank prepares, launches (1 ms) and computes (1 ms; on a card behind the host), and exchanges
    (0.2 ms) when all have their gradients. A card's host waits for it in the next copy.
    """
    every, now = [[] for _ in prep_ms], [1000.0] * len(prep_ms)
    ended = 1000.0
    for i in range(spec.pipeline.steps):
        last = (i + 1) % spec.pipeline.accumulation_steps == 0
        ready = [t + prep for t, prep in zip(now, prep_ms, strict=True)]
        copied = [max(t, ended) if on_cards else t for t in ready]
        done = [at + 1.2 for at in copied]
        exchanged = max(done) + 0.2 if last or not spec.no_sync else None
        for rank, steps in enumerate(every):
            end = (exchanged or done[rank]) + 0.1
            issued = copied[rank] + 1.0 if on_cards else end
            t = [now[rank], ready[rank], copied[rank], issued]
            step = {"event": "step", "i": i, "n": spec.pipeline.batch_size, "loss": 1.0, "t": ns(t)}
            if on_cards:
                step |= {"copy": ns([copied[rank], copied[rank]]), "busy": ns([copied[rank], end])}
            if exchanged:
                step["comm"] = ns([done[rank], exchanged])
            steps.append(step)
            now[rank] = issued
        ended = (exchanged or max(done)) + 0.1
    return every


def one_on(asked: lk.Pipeline, device: str) -> Any:
    """Return a run of one process as it would log, alone: it exchanges with nobody."""
    spec = Distributed(asked.but(device="auto"), 1)
    [steps] = rank_steps(spec, [asked.prep_ms or 0.1], device == "gpu")
    steps = [{k: v for k, v in step.items() if k != "comm"} for step in steps]
    head = {"event": "spec", "version": VERSION, "run": "one", "pipeline": asked.to_dict()}
    return logged([head, MACHINES[device], {"event": "begin", "warmup": 3}, *steps, DONE, END])


MACHINES = {
    kind: {"event": "machine", "device": device, "kind": kind, "name": name, "versions": {}}
    for kind, device, name in (("cpu", "cpu", "a CPU"), ("gpu", "cuda:0", "a card"))
}
DONE = {"event": "done"}
END = {"event": "end", "stop": None, "code": 0}


def ns(times_ms: list[float]) -> list[int]:
    """Return ms as a log has them."""
    return [round(t * 1e6) for t in times_ms]


def logged(lines: list[dict]) -> Any:
    """Write a record of these events and load it."""
    path = Path(tempfile.mkdtemp()) / "record.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lk.load(path)


# -- all of it ---------------------------------------------------------------------------------


def prepare() -> None:
    """Replace what needs a process of its own, a compiler, or memory that has addresses."""
    os.environ["LABKIT_NO_SCORE"] = "1"
    for module in pkgutil.iter_modules(show.__path__, "labkit.show."):
        importlib.import_module(module.name)
    usual = launcher.launch
    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is usual:
            module.launch = lambda spec, after=None: Card.here.launch(spec)
    script_spec.machine = lk.machine = lambda: Card.here.machine
    workbench.Workbench = OneCall
    OneCall.compile_lacks, fusion.compile_it = lambda *_: None, compiled_for_card
    fusion.show_kernel = fusion.launches = lambda *_: None
    number_formats.kept_bytes = lambda *_: 0
    gc.freeze()  # what has been imported is not looked at again


def asserts_on(card: standin_gpu.Card) -> dict[str, str]:
    """Run every notebook on the card; return what became of each cell."""
    with standin_gpu.installed(card, numbers=False) as gpu:
        model_size.kept_in = Path(tempfile.mkdtemp())
        Card.here = Card(gpu)
        torch.cuda.set_per_process_memory_fraction = Card.here.limit_memory
        return {cell: how for path in NOTEBOOKS for cell, how in run_notebook(path)}


if __name__ == "__main__":
    prepare()
    print(json.dumps({name: asserts_on(standin_gpu.CARDS[name]) for name in sys.argv[1:]}))
