"""What the kit itself costs, measured on this machine, each beside what it should stay below.

`python maintain/benchmarks/own_cost.py`; with `--recording` what recording a step costs alone: a
lot decides for each step whether it is recorded. Two of the three lots are the same unrecorded
step: what they differ by is the noise.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import torch
from paired import by_lot

from labkit.bench import loop, timeline
from labkit.process import launcher
from labkit.process.events import now_ns
from labkit.process.step_ring import StepRing
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.spec import Pipeline

TESTS = str(Path(__file__).parents[2] / "tests")  # `planted`, which the bench imports, is there
REPEATS = 5
STEPS = 15_000
STEP_MS = 1.4


def seconds_since(start_ns: int) -> float:
    return (now_ns() - start_ns) / 1e9


def import_s() -> float:
    """Return what `import labkit` takes above a bare Python, s."""
    took: dict[str, list[float]] = {"import labkit; labkit.Pipeline": [], "pass": []}
    for _ in range(REPEATS):
        for code, times in took.items():
            start = now_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(seconds_since(start))
    ours, bare = map(median, took.values())
    return ours - bare


def run_s(warm: bool) -> tuple[float, float]:
    """Return the seconds from the start of a default run to its first step, and to its end."""
    if warm:
        launcher.stand_by(forced=True)
        time.sleep(5)
    start = now_ns()
    run = launch(Pipeline()).wait_or_raise()
    return (run.host_ns[0, 3] - start) / 1e9, seconds_since(start)


def stop_s(fault: str | None = None) -> float:
    """Return how long Stop takes, s."""
    run = launch(Pipeline(num_workers=2, steps=100_000, seconds=60), fault=fault)
    while run.running and not run.steps:
        time.sleep(0.01)
    time.sleep(1)  # past the step in which a planted hang begins
    start = now_ns()
    run.stop()
    return seconds_since(start)


def trainer_of(step_ms: float) -> tuple[loop.Trainer, torch.Tensor, torch.Tensor]:
    """Return the default CNN on one thread, and a batch so large that a step takes `step_ms`."""
    torch.set_num_threads(1)
    job = SimpleNamespace(**Pipeline(width=8, depth=1).to_dict())
    trainer = loop.Trainer(job, torch.device("cpu"))
    labels = torch.randint(0, 10, (2,))
    image_px = 14
    took_ns = 0.0
    while took_ns < step_ms * 1e6:
        image_px += 2
        images = torch.randint(0, 256, (2, 3, image_px, image_px), dtype=torch.uint8)
        [times] = by_lot([functools.partial(trainer.compute, images, labels, update=True)], 60)
        took_ns = float(np.median(times[20:]))
    return trainer, images, labels


def recording() -> None:
    """Print the time of a step, and as shares of it what recording costs, and the noise."""
    trainer, images, labels = trainer_of(STEP_MS)
    with tempfile.TemporaryDirectory() as folder:
        host = timeline.HostTimeline(StepRing(folder).add)

        def plain() -> None:
            trainer.compute(*trainer.to_device(images, labels), update=True)

        def recorded() -> None:
            asked = now_ns()
            ready = host.copying()
            batch = trainer.to_device(images, labels)
            copied = host.copied()
            host.computing()
            loss = trainer.compute(*batch, update=True)
            host.step(timeline.Step(0, asked, ready, copied, labels.numel(), loss))

        first, second, third = map(np.median, by_lot([plain, plain, recorded], STEPS))
    step_ns = (first + second) / 2
    print(f"a step without recording: {step_ns / 1e6:.2f} ms")
    print(f"recording it: {(third - step_ns) / step_ns:.2%}; should be below 1 %")
    print(f"noise: {abs(first - second) / step_ns:.2%}", flush=True)


def main() -> None:
    """Print each cost: medians of several repeats."""
    recording()
    if "--recording" in sys.argv:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    cold = [run_s(warm=False) for _ in range(REPEATS)]
    warm = [run_s(warm=True) for _ in range(REPEATS)]
    rows = [
        ("import labkit, above a bare Python", import_s(), 0.5),
        ("lk.run to its first step", median(first for first, _ in cold), 4.0),
        ("the same with a standby", median(first for first, _ in warm), 0.3),
        ("a default run, from start to end", median(whole for _, whole in cold), 6.0),
        ("Stop, when the bench cooperates", median(stop_s() for _ in range(REPEATS)), 0.2),
        ("Stop, when it hangs", stop_s("planted:plant:ignores_stop"), 1.5),
    ]
    for what, seconds, limit in rows:
        print(f"{what}: {seconds:.3f} s; should be below {limit} s")
    print(machine().line)


if __name__ == "__main__":
    main()
