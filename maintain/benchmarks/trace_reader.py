"""Measure the trace reader: events, seconds, and peak memory as a multiple of the file's size.

    python maintain/benchmarks/trace_reader.py [TRACE.json ...]

Without a file it writes a trace of 75,000 events in Kineto's layout. Each file is read in a process
of its own; the time is the median of three, imports not included.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# VmHWM, not ru_maxrss: a new process inherits the latter from the one that started it.
CHILD = """
import json, pathlib, sys, time
from labkit.diagnosis.trace import trace

def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if "VmHWM" in line)

before, began = peak_bytes(), time.perf_counter()
trace(sys.argv[1])
print(json.dumps([time.perf_counter() - began, peak_bytes() - before]))
"""
STACK = ";".join(f"torch/nn/modules/module.py({line}): _call_impl" for line in range(1500, 1506))
SHAPES = [[32, 64, 56, 56], [64, 64, 3, 3], []]
LAUNCHES = 15_000  # five events each


def generated():
    """Return one step: operators with shapes and stacks, launches, kernels, flows."""
    events = []

    def add(category, name, ts, dur, process=9, phase="X", **more):
        place = {"ph": phase, "cat": category, "name": name, "pid": process, "tid": process}
        events.append(place | {"ts": ts, "dur": dur} | more)

    add("user_annotation", "ProfilerStep#1", 0, 50 * LAUNCHES)
    for number in range(LAUNCHES):
        ts = 40 * number
        ids = {"External id": number, "correlation": number}
        about = {"Input Dims": SHAPES, "Call stack": STACK, "External id": number}
        add("cpu_op", "aten::conv2d", ts, 20.25, args=about)
        add("cuda_runtime", "cudaLaunchKernel", ts + 5, 6.75, args=ids)
        add("kernel", f"void kernel_{number % 40}<float>(int)", ts + 15, 9.5, process=0, args=ids)
        add("ac2g", "ac2g", ts + 5, 0, phase="s", id=number)
        add("ac2g", "ac2g", ts + 15, 0, process=0, phase="f", id=number)
    return {"schemaVersion": 1, "traceEvents": events}


def measure(path):
    """Read `path` three times; print the median of the seconds and the peak of memory."""
    command = [sys.executable, "-c", CHILD, path]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
    size = path.stat().st_size
    seconds = statistics.median(run[0] for run in runs)
    peak = max(run[1] for run in runs)
    print(f"{path.name}: {size / 1e6:.1f} MB, {seconds:.2f} s, peak {peak / size:.2f} x the file")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "generated.json")
        own.write_text(json.dumps(generated(), indent=1))
        for name in sys.argv[1:] or [own]:
            measure(Path(name))
