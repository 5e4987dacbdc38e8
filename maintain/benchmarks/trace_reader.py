"""Measure the trace reader: events, seconds, and peak memory as a multiple of the file's size.

    python maintain/benchmarks/trace_reader.py [TRACE ...]

Without a file it writes a trace of 75,000 events in Kineto's layout. Each file is read in a process
of its own, three times; the time is the median, imports not included.
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# VmHWM, not ru_maxrss: a new process inherits the latter from the one that started it.
CHILD = """
import json, pathlib, sys, time
from labkit.analysis.trace import trace

def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if "VmHWM" in line)

before, began = peak_bytes(), time.perf_counter()
trace(sys.argv[1])
print(json.dumps([time.perf_counter() - began, peak_bytes() - before]))
"""
STACK = ";".join(f"torch/nn/modules/module.py({line}): _call_impl" for line in range(1500, 1506))
STEPS, LAUNCHES = 6, 2_500  # of a step; five events each


def step_events(step):
    """Yield one step: operators with shapes and stacks, launches, kernels, flows."""
    start, host, stream = 1_700_000_000_000_000 + step * 200_000, {"pid": 9, "tid": 9}, {"pid": 0}
    mark = {"ph": "X", "cat": "user_annotation", **host, "args": {}}
    load = "enumerate(DataLoader)#_Iter.__next__"
    yield mark | {"name": f"ProfilerStep#{step}", "ts": start, "dur": 199_000.5}
    yield mark | {"name": load, "ts": start + 10, "dur": 50_000.125}
    for i in range(LAUNCHES):
        ts, number = start + 60_000 + i * 40, step * 5 * LAUNCHES + i + 2
        ids = {"External id": number, "correlation": number}
        shape = {"Input Dims": [[32, 64, 56, 56], [64, 64, 3, 3], []], "Call stack": STACK}
        yield {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", **host,
               "ts": ts, "dur": 20.25, "args": {**shape, "External id": number}}  # fmt: skip
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host,
               "ts": ts + 5, "dur": 6.75, "args": {"cbid": 211, **ids}}  # fmt: skip
        yield {"ph": "X", "cat": "kernel", "name": f"void kernel_{i % 40}<float, 512>(int, int)",
               **stream, "ts": ts + 15, "dur": 9.5,
               "args": {"device": 0, "grid": [50, 1, 1], **ids}}  # fmt: skip
        flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
        yield flow | {"ph": "s", **host, "ts": ts + 5}
        yield flow | {"ph": "f", **stream, "ts": ts + 15}


def measure(path):
    """Read `path` three times; print the median of the seconds and the peak of memory."""
    command = [sys.executable, "-c", CHILD, path]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    count, size = content.count(b'"ph"'), len(content)
    seconds, peak = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
    print(f"{path.name}: {count:,} events, {size / 1e6:.1f} MB uncompressed, {seconds:.2f} s, "
          f"peak memory {peak / size:.2f} x the uncompressed file")  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder, "generated.json")
        events = [] if sys.argv[1:] else [e for step in range(STEPS) for e in step_events(step)]
        generated.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1))
        for name in sys.argv[1:] or [generated]:
            measure(Path(name))
