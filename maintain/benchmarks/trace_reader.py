"""Measure the trace reader: events, seconds, and peak memory as a multiple of the file's size.

    python maintain/benchmarks/trace_reader.py [TRACE.json ...]

Without a file it writes a trace of 75,000 events in Kineto's layout. Each file is read in a process
of its own; the time is the median of three, imports not included.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

# VmHWM, not ru_maxrss: a new process inherits the latter from the one that started it.
CHILD = """
import json, pathlib, re, sys, time
from labkit.diagnosis.trace import trace

def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024

before, began = peak_bytes(), time.perf_counter()
trace(sys.argv[1])
print(json.dumps([time.perf_counter() - began, peak_bytes() - before]))
"""
STACK = ";".join(f"torch/nn/modules/module.py({line}): _call_impl" for line in range(1500, 1506))
SHAPES = [[32, 64, 56, 56], [64, 64, 3, 3], []]
LAUNCHES = 15_000  # five events each
HOST = 9  # process
DEVICE = 0


def event(category: str, name: str, ts: float, dur: float, process: int = HOST, **more: object):
    """Return an event, as Kineto writes it; times in µs."""
    place = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": process}
    return place | {"ts": ts, "dur": dur} | more


def generated() -> dict[str, object]:
    """Return one step: operators with shapes and stacks, launches, kernels, flows."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 50 * LAUNCHES)]
    for number in range(LAUNCHES):
        ts = 40 * number
        ids = {"External id": number, "correlation": number}
        about = {"Input Dims": SHAPES, "Call stack": STACK, "External id": number}
        kernel = f"void kernel_{number % 40}<float>(int)"
        events += [
            event("cpu_op", "aten::conv2d", ts, 20.25, args=about),
            event("cuda_runtime", "cudaLaunchKernel", ts + 5, 6.75, args=ids),
            event("kernel", kernel, ts + 15, 9.5, DEVICE, args=ids),
            event("ac2g", "ac2g", ts + 5, 0, ph="s", id=number),
            event("ac2g", "ac2g", ts + 15, 0, DEVICE, ph="f", id=number),
        ]
    return {"schemaVersion": 1, "traceEvents": events}


def measure(path: Path) -> None:
    """Read `path` three times; print the median of the seconds and the peak of memory."""
    command = [sys.executable, "-c", CHILD, path]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
    seconds, peaks = zip(*runs, strict=True)
    size = path.stat().st_size
    print(
        f"{path.name}: {size / 1e6:.1f} MB, {median(seconds):.2f} s, "
        f"peak {max(peaks) / size:.2f} x the file"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "generated.json")
        own.write_text(json.dumps(generated(), indent=1))
        for name in sys.argv[1:] or [own]:
            measure(Path(name))
