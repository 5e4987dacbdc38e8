"""A run of millions of steps: what it takes to load its log and to draw it.

`python maintain/benchmarks/long_runs.py [STEPS]` writes a synthetic log (the lines that a run on a
CPU writes, with telemetry at 5 Hz), loads, prints and draws it in a process of its own, and says
how long each took and how much memory it had at most. 10 million steps (the default) take 1.3 GB of
disk; the bound is 1 GB of memory.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from labkit.process.events import line_of

STEPS = 10_000_000
BOUND_GB = 1.0
TELEMETRY_NS = 200_000_000
DURATIONS = 997  # different steps, in turn


def write(path: Path, steps: int) -> None:
    """Write the log of a run that waits 0.4 to 0.8 ms and computes 0.4 to 0.6 ms a step."""
    rng = random.Random(0)
    waits = [rng.randint(400_000, 800_000) for _ in range(DURATIONS)]
    computes = [rng.randint(400_000, 600_000) for _ in range(DURATIONS)]
    head = [
        {"event": "spec", "version": 1, "run": "long", "pipeline": {"num_workers": 2}},
        {"event": "machine", "device": "cpu", "kind": "cpu", "name": "synthetic", "versions": {}},
        {"event": "begin", "warmup": 12},
    ]
    now = 10**9
    told = now
    with open(path, "w") as log:
        log.writelines(json.dumps(event) + "\n" for event in head)
        for i in range(steps):
            ready = now + waits[i % DURATIONS]
            done = ready + computes[i % DURATIONS]
            cpu = done - ready if i % 32 == 0 else 0
            row = (0, 0, 0, 0, i + 1, now, ready, ready, done, 16, cpu, 1 / (i + 1), 0, 0, i + 1)
            log.write(line_of(row) + "\n")
            if done > told + TELEMETRY_NS * steps // 100_000:  # thinned, as after hours
                log.write(json.dumps({"event": "telemetry", "t_ns": done, "cpu": 0.5}) + "\n")
                told = done
            now = done + 5_000
        log.write('{"event":"done"}\n{"event":"end","stop":null,"code":0}\n')


def peak_gb() -> float:
    """Return the most memory that this process has had, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def look_at(path: str) -> None:
    """Load, print and draw the log, and say what each took."""
    import labkit

    began = time.perf_counter()
    run = labkit.load(path)
    print(f"loaded: {time.perf_counter() - began:.1f} s, {peak_gb():.2f} GB at most")
    began = time.perf_counter()
    print(run)
    print(f"printed: {time.perf_counter() - began:.1f} s, {peak_gb():.2f} GB at most")
    began = time.perf_counter()
    run.plot().savefig(f"{path}.png")
    print(f"drawn: {time.perf_counter() - began:.1f} s, {peak_gb():.2f} GB at most")
    if peak_gb() > BOUND_GB:
        sys.exit(f"more than {BOUND_GB:g} GB")


def main() -> None:
    """Write the log, and look at it in a fresh process."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.jsonl"
        write(path, steps)
        print(f"{steps:,} steps, {path.stat().st_size / 1e9:.2f} GB of log", flush=True)
        sys.exit(subprocess.call([sys.executable, __file__, "--look", str(path)]))


if __name__ == "__main__":
    look_at(sys.argv[2]) if sys.argv[1:2] == ["--look"] else main()
