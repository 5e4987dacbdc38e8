"""What the kit's own starts and ends take here, each beside what it should stay below.

`python maintain/benchmarks/own_cost.py`; what a step costs more is step_cost.py's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from labkit import Pipeline, machine
from labkit.api import launch
from labkit.process import launcher
from labkit.stamps.events import now_ns

TESTS = str(Path(__file__).parents[2] / "tests")  # `planted`, which the bench imports, is there
REPEATS = 5
IMPORT = "import labkit; labkit.Pipeline"


def seconds_since(start_ns: int) -> float:
    return (now_ns() - start_ns) / 1e9


def python_s(code: str) -> float:
    """Return what a new Python takes for some code, s."""
    start = now_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return seconds_since(start)


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


def main() -> None:
    """Print each cost: medians of several repeats."""
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    imports = np.median([python_s(IMPORT) - python_s("pass") for _ in range(REPEATS)])
    first, whole = np.median([run_s(warm=False) for _ in range(REPEATS)], axis=0)
    first_warm, _ = np.median([run_s(warm=True) for _ in range(REPEATS)], axis=0)
    rows = [
        ("import labkit, above a bare Python", imports, 0.5),
        ("lk.run to its first step", first, 4.0),
        ("the same with a standby", first_warm, 0.3),
        ("a default run, from start to end", whole, 6.0),
        ("Stop, when the bench cooperates", np.median([stop_s() for _ in range(REPEATS)]), 0.2),
        ("Stop, when it hangs", stop_s("planted:plant:ignores_stop"), 1.5),
    ]
    for what, seconds, limit in rows:
        print(f"{what}: {seconds:.3f} s; should be below {limit} s")
    print(machine().line)


if __name__ == "__main__":
    main()
