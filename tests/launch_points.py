"""The points that an experiment times on the card, each recorded once on the stand-in."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launch_claims as claims
import torch
from launch_replay import Step, recorded
from standin_gpu import StandIn

from labkit.bench.workbench import Workbench, job_of
from labkit.experiments import EXPERIMENTS

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
DEVICE = torch.device("cuda", 0)
NO_CASE = ("flops", "bytes", "values", "min_time_s", "setup")  # of what is written of a point
UNSAID = ("launches", "multiple")


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
        said = {name: value for name, value in case.items() if name not in UNSAID}
        about = ", ".join(f"{name}={value}" for name, value in said.items())
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
        case = {
            n: v for n, v in case.items() if n not in ("flops", "bytes", "values", "min_time_s")
        }
        if isinstance(seconds, Timed) and seconds.step.totals[0]:
            self.points.append((of, case, seconds.step))

    def compile_lacks(self) -> str:
        """Only the eager side is recorded."""
        return "the eager side only"

    def skip(self, what: str, why: str) -> None:
        """Nothing was recorded."""
