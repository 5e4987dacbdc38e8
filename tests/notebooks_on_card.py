"""The notebooks' own cells, on a machine with a stand-in GPU: what would its owner see?

    python tests/notebooks_on_card.py H200    {"H200": {"sawtooth-12": "held" (or why not), ...}}

Of each notebook the cells are run that assert something, or print what is checked, and those before
them that they need. Their `lk` is labkit, but for the one function that starts processes: `launch`
does the work in this one, on the card of `standin_gpu` and its virtual clock. A run there is the
real loop with the real timeline, cut to the steps that it takes to measure. Left out are the
capstone, which has tests of its own, and notebook 09, on ranks.
"""

from __future__ import annotations

import ast
import contextlib
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
from labkit.bench import machine, workbench
from labkit.experiments import fusion, number_formats
from labkit.process.events import VERSION, EventLog
from labkit.results import launch as launcher
from labkit.results.machine import Machine
from labkit.results.measurements import Measurements
from labkit.spec import Experiment

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("0[0-7]*.ipynb"))
CARD = torch.device("cuda", 0)
CORES = 8  # of the machine that the card is in
STEPS = 15  # of a run: three of warm-up and twelve to measure
MORE_STEPS = 60  # where a window of a second is laid over the run
MANY_PIECES = 2000  # copies that are computed and not run
# Cells whose asserts no stand-in can answer
LEFT_OUT = {
    "sawtooth-68": "a loop of this process, on the real clock",
    "8b327ec9s": "a loop of this process: its stacks are sampled on the real clock",
    "5c58a4c9": "stalls of seconds: longer than a run is here",
    "loader-28": "starts of real processes: no device takes part",
    "loader-34": "what items cost the CPU: no device takes part",
    "loader-60": "the tuner's runs, each in a process of its own",
    "loader-overlap-run": "the clock of this machine, on which a stand-in's copies take no time",
    "precision-12": "what numbers become in 16 bits: IEEE 754, on every device",
    "precision-err-1": "rounding of products: the card's own arithmetic",
    "precision-36": "what PyTorch keeps for the backward pass: the same on every device",
    "precision-42": "gradients in FP16: the card's own arithmetic",
    "precision-28": "losses in 16 bits: the card's own arithmetic",
    "precision-44": "gradients in FP16: the card's own arithmetic",
    "batch-29": "memory by part: which attention kernel runs, and keeps what, is the card's choice",
    "batch-pad-6": "padding of real texts: here every batch is noise",
    "batch-45": "losses of real trainings: the card's own arithmetic",
    "accumulation-09": "rounding of sums: the card's own arithmetic",
    "accumulation-15": "errors of updates: the card's own arithmetic",
    "accumulation-33": "losses of real trainings: the card's own arithmetic",
    "compile-24": "what Dynamo captures: no device takes part",
    "compile-44": "sums of a Triton kernel: the card's own arithmetic",
    "compile-26": "what Dynamo captures: no device takes part",
    "ck-decode": "decode of a real model: the card's own bandwidth",
}


class Cell(NamedTuple):
    """A code cell; `prints` is what it has to print on every machine, None where that differs."""

    id: str
    source: str
    prints: str | None

    @property
    def asserts(self) -> bool:
        return self.prints is not None or "assert " in self.source


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
        if (cell.asserts or bound & wanted) and cell.id not in LEFT_OUT:
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
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
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


class Card:
    """Does here, on the stand-in, what `launch` would have a process of its own do."""

    here: Card  # the one of this process

    def __init__(self, gpu: standin_gpu.StandIn):
        self.gpu, self.whole = gpu, gpu.cards
        self.described = machine.describe(CARD)
        self.machine = Machine.from_dict(self.described | {"cpu_cores": CORES})

    def launch(self, spec: Any) -> Any:
        """Do what `spec` says; return what its log says of it."""
        gc.collect()  # a process of its own begins with an empty card
        torch.cuda.reset_peak_memory_stats()
        if isinstance(spec, Experiment):
            return self.measure(spec)
        # a window of a second is laid over some runs
        steps = spec.filled(gpu=True)["steps"]
        seconds_count = spec.steps is not None and steps > 100 and (spec.seconds or 0) > 3.5
        short = spec.but(steps=min(steps, MORE_STEPS if seconds_count else STEPS))
        return with_items(standin_run.run_on(self.gpu, short))

    def measure(self, spec: Experiment) -> Measurements:
        folder = Path(tempfile.mkdtemp())
        log = EventLog(folder)
        log.write("spec", version=VERSION, run="x", labkit="x", **spec.to_spec())
        log.write("machine", **self.described)
        workbench.perform(spec.to_spec(), CARD, folder, log, lambda *_: None)
        self.gpu.cards = self.whole
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
        return 1


def compiled_for_card(chain: Any, bench: Any) -> None:
    """Stand in for torch.compile: one kernel that reads every input and writes the result."""

    def fused(arrays: tuple, d: torch.Tensor) -> None:
        moved = chain.bytes(True, d.numel())
        gpu = standin_gpu.GPU
        gpu.enqueue("fused", 0, gpu.kernel_us(gpu.cards[0], 0.0, moved))

    chain.fused = fused


def with_items(run: Any) -> Any:
    """Return a run whose log also has what its items, and handing a batch over, took."""
    job, workers = run.pipeline, max(run.pipeline.num_workers, 1)
    decode_us = 1e3 * standin_run.DECODE_MS * (job.image_px / 48) ** 2
    cpu_us = decode_us if job.dataset == "jpeg" else 0.0
    wait_us = 1e3 * (job.io_ms if job.dataset != "sleep" else job.prep_ms / job.batch_size)
    each = [[us] * min(job.batch_size, 16) for us in (cpu_us, wait_us)]
    sums = [us * job.batch_size for us in (cpu_us, wait_us)]
    rows = [[i // workers, step["t"][0], job.batch_size, *sums, 0, 50, 0, 0, 0, *each]
            for i, step in enumerate(run.steps_since(0))]  # fmt: skip
    told = [{"event": "items", "worker": k if job.num_workers else -1, "rows": rows[k::workers]}
            for k in range(workers)]  # fmt: skip
    handed = dict.fromkeys(("main_wall_us", "worker_us", "share_us", "warm_us", "cold_us"), 100.0)
    told.append({"event": "handoff", "bytes": 6912 * job.batch_size} | handed)
    log = run.path / "events.jsonl"
    *lines, end = log.read_text().splitlines()
    log.write_text("".join(f"{line}\n" for line in [*lines, *map(json.dumps, told), end]))
    return type(run)(run.path)


def prepare() -> None:
    """Replace what needs a process of its own, a compiler, or memory that has addresses."""
    os.environ["LABKIT_NO_SCORE"] = "1"
    for module in pkgutil.iter_modules(show.__path__, "labkit.show."):
        importlib.import_module(module.name)
    usual = launcher.launch
    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is usual:
            module.launch = lambda spec, after=None: Card.here.launch(spec)
    lk.machine = lambda: Card.here.machine
    workbench.Workbench = OneCall
    OneCall.compile_lacks, fusion.compile_it = lambda *_: None, compiled_for_card
    fusion.show_kernel = fusion.launches = lambda *_: None
    number_formats.kept_bytes = lambda *_: 0
    gc.freeze()  # what has been imported is not looked at again


def asserts_on(card: standin_gpu.Card) -> dict[str, str]:
    with standin_gpu.installed(card, numbers=False) as gpu:
        os.environ["LABKIT_HOME"] = tempfile.mkdtemp()
        Card.here = Card(gpu)
        torch.cuda.set_per_process_memory_fraction = Card.here.limit_memory
        return {cell: how for path in NOTEBOOKS for cell, how in run_notebook(path)}


if __name__ == "__main__":
    prepare()
    print(json.dumps({name: asserts_on(standin_gpu.CARDS[name]) for name in sys.argv[1:]}))
