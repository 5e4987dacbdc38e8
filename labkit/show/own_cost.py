"""What the kit itself costs, measured on this machine: `python -m labkit bench-self`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from labkit.results.launch import launch
from labkit.results.machine import machine
from labkit.results.run import Run
from labkit.spec import Pipeline

REPEATS = 5

# key -> (what it is, what it should stay below), in the order of the table
CLAIMS = {
    "import_s": ("import labkit, above a bare Python", 0.5),
    "first_step_s": ("lk.run to its first step", 4.0),
    "default_run_s": ("a default run, from start to end", 6.0),
    "stop_s": ("Stop, when the bench cooperates", 0.2),
    "forced_stop_s": ("Stop, when it hangs", 1.5),
    "recorder_cost_share": ("recording, as a share of a 1.4 ms step", 0.01),
    "recorder_step_ms": ("that step without recording, ms", None),
}


def measure() -> dict[str, Any]:
    """Measure each of CLAIMS (medians of several repeats) and name the machine."""
    print("labkit: measuring its own cost, about a minute ...", file=sys.stderr)
    times = [_default_run() for _ in range(REPEATS)]
    return {
        "machine": machine().line,
        "import_s": _median(_import_s),
        "first_step_s": statistics.median(first for first, _ in times),
        "default_run_s": statistics.median(whole for _, whole in times),
        "stop_s": _median(_stop_s),
        "forced_stop_s": _stop_s(fault="labkit.bench.own_cost:hang:"),
        **_recorder(),
    }


def table(costs: dict[str, Any]) -> str:
    """The costs as text, each beside what it should stay below."""
    lines = [costs["machine"]]
    for key, (what, limit) in CLAIMS.items():
        goal = "" if limit is None else f"(below {limit:g})"
        lines.append(f"{what:45}{costs[key]:9.4f}  {goal}".rstrip())
    return "\n".join(lines)


def _median(question: Callable[[], float]) -> float:
    return statistics.median(question() for _ in range(REPEATS))


def _import_s() -> float:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    return seconds("import labkit; labkit.Pipeline") - seconds("pass")


def _default_run() -> tuple[float, float]:
    """Return (seconds to the first step, seconds in all)."""
    start, first = time.perf_counter(), []

    def see(run: Run) -> None:
        if run.steps and not first:
            first.append(time.perf_counter() - start)

    launch(Pipeline()).wait(each=see)
    return first[0], time.perf_counter() - start


def _stop_s(fault: str | None = None) -> float:
    run = launch(Pipeline(num_workers=2, steps=100_000, seconds=60), fault=fault)
    while run.running and not run.steps:
        time.sleep(0.01)
    time.sleep(0.3)  # past the step in which a planted hang begins
    start = time.perf_counter()
    run.stop()
    return time.perf_counter() - start


def _recorder() -> dict[str, float]:
    command = [sys.executable, "-m", "labkit.bench.own_cost"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
