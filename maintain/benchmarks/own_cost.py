"""What the kit itself costs, measured on this machine.

`python maintain/benchmarks/own_cost.py`; with `--recording` what recording costs alone: each step
is recorded or not by lot, as blocks of steps cannot resolve 1 % on a noisy machine (A/A noise is
3-5 %). Two of the three lots are the same unrecorded step: what they differ by is the noise.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from labkit.bench import loop, timeline
from labkit.process import launcher
from labkit.process.events import now_ns
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.result import Table
from labkit.spec import Pipeline

MODULE = "own_cost"  # as the bench imports it
REPEATS, STEPS = 5, 15_000
STEP_MS = 1.4
CLAIMS = {  # key -> (what it is, what it should stay below)
    "import_s": ("import labkit, above a bare Python", 0.5),
    "first_step_s": ("lk.run to its first step", 4.0),
    "warm_first_step_s": ("the same with a standby", 0.3),
    "default_run_s": ("a default run, from start to end", 6.0),
    "stop_s": ("Stop, when the bench cooperates", 0.2),
    "forced_stop_s": ("Stop, when it hangs", 1.5),
    "recorder_cost_share": ("recording, as a share of a 1.4 ms step", 0.01),
    "recorder_step_ms": ("that step without recording, ms", None),
}


def measure() -> dict[str, Any]:
    """Measure each of CLAIMS (medians of several repeats) and name the machine."""
    print("labkit: measuring its own cost, about a minute ...", file=sys.stderr)
    runs = [run_s() for _ in range(REPEATS)]
    imports = []
    for code in ("import labkit; labkit.Pipeline", "pass") * REPEATS:
        start = now_ns()
        subprocess.run([sys.executable, "-c", code], check=True)
        imports.append((now_ns() - start) / 1e9)
    return json.loads(subprocess.check_output([sys.executable, __file__, "--recording"])) | {
        "machine": machine().line,
        "import_s": median(imports[::2]) - median(imports[1::2]),
        "first_step_s": median(first for first, _ in runs),
        "warm_first_step_s": median(run_s(warm=True)[0] for _ in range(REPEATS)),
        "default_run_s": median(whole for _, whole in runs),
        "stop_s": median(stop_s() for _ in range(REPEATS)),
        "forced_stop_s": stop_s(fault=f"{MODULE}:hang:"),
    }


def table(costs: dict[str, Any]) -> Table:
    """Return the costs, each beside what it should stay below."""
    rows = [(what, f"{costs[key]:.4f}", limit) for key, (what, limit) in CLAIMS.items()]
    return Table(rows, ("", "measured", "should be below"), costs["machine"])


def run_s(warm: bool = False) -> tuple[float, float]:
    """Return the seconds from the start of a default run to its first step, and to its end."""
    if warm:
        launcher.stand_by(forced=True)
        time.sleep(5)
    start = now_ns()
    run = launch(Pipeline()).wait_or_raise()
    return (run.host_ns[0, 3] - start) / 1e9, (now_ns() - start) / 1e9


def stop_s(fault: str | None = None) -> float:
    """Return how long Stop takes, s."""
    run = launch(Pipeline(num_workers=2, steps=100_000, seconds=60), fault=fault)
    while run.running and not run.steps:
        time.sleep(0.01)
    time.sleep(0.3)  # past the step in which a planted hang begins
    start = now_ns()
    run.stop()
    return (now_ns() - start) / 1e9


def hang(_argument: str, dataset: Any, trainer: Any) -> Any:
    """Plant a loop that hangs after a step, deaf to Stop: the bench's hook for the forced one."""

    def deaf() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(3600)

    trainer.after_step = deaf
    return dataset


def trainer_of(step_ms: float) -> tuple[Any, Any, Any]:
    """Return the default CNN on one thread, and images so large that a step takes `step_ms`."""
    torch.set_num_threads(1)
    job = SimpleNamespace(**Pipeline(width=8, depth=1).to_dict())
    trainer = loop.Trainer(job, torch.device("cpu"))
    labels, took, px = torch.randint(0, 10, (2,)), [0], 16
    while median(took[20:] or [0]) < step_ms * 1e6:
        images, px, took = torch.randint(0, 256, (2, 3, px, px), dtype=torch.uint8), px + 2, []
        for _ in range(60):
            start = now_ns()
            trainer.compute(images, labels, update=True)
            took.append(now_ns() - start)
    return trainer, images, labels


def recorder_cost() -> dict[str, float]:
    """Return the step time without and with recording (ms), and cost and noise as shares of it."""
    trainer, images, labels = trainer_of(STEP_MS)
    lots, took = random.Random(0), ([], [], [])  # plain, plain too, recorded
    with tempfile.TemporaryDirectory() as folder:
        host = timeline.HostTimeline(folder)
        for i in range(STEPS):
            lot = lots.randrange(3)
            start = now_ns()
            if lot == 2:
                asked, ready = now_ns(), host.copying()
                batch = trainer.to_device(images, labels)
                copied = host.copied()
                host.computing()
                loss = trainer.compute(*batch, update=True)
                step = timeline.Step(i, asked, ready, copied, labels.numel(), loss)
                host.step(step)
            else:
                trainer.compute(*trainer.to_device(images, labels), update=True)
            took[lot].append(now_ns() - start)
    first, second, recorded = (median(lot) / 1e6 for lot in took)
    plain = median(took[0] + took[1]) / 1e6
    return {"recorder_step_ms": plain, "recorder_recorded_step_ms": recorded,
            "recorder_cost_share": recorded / plain - 1,
            "recorder_noise_share": abs(second - first) / plain}  # fmt: skip


if __name__ == "__main__":
    if "--recording" in sys.argv:
        print(json.dumps(recorder_cost()))
    else:
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
        print(table(measure()))
