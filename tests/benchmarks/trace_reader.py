"""Measure the trace reader: events, seconds, and peak memory as a multiple of the file's size.

    python tests/benchmarks/trace_reader.py [TRACE ...]

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

REPOSITORY = Path(__file__).resolve().parents[2]
# VmHWM, not ru_maxrss: a new process inherits the latter from the one that started it.
CHILD = """
import json, pathlib, sys, time
from labkit.analysis.trace import trace

def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if "VmHWM" in line)

before, began = peak_bytes(), time.perf_counter()
trace(sys.argv[1])
took, peak = time.perf_counter() - began, peak_bytes() - before
print(json.dumps([took, peak, [name for name in ("torch", "matplotlib") if name in sys.modules]]))
"""
STACK = ";".join(f"torch/nn/modules/module.py({line}): _call_impl" for line in range(1500, 1506))
PER_STEP = 12_500  # events


def step_events(step: int, count: int) -> list[dict]:
    """Return the events of one step: operators with shapes and stacks, launches, kernels, flows."""
    start, host, stream = 1_700_000_000_000_000 + step * 200_000, {"pid": 9, "tid": 9}, {"pid": 0}
    mark = {"ph": "X", "cat": "user_annotation", **host}
    load = "enumerate(DataLoader)#_Iter.__next__"
    events = [
        {**mark, "name": f"ProfilerStep#{step}", "ts": start, "dur": 199_000.5, "args": {}},
        {**mark, "name": load, "ts": start + 10, "dur": 50_000.125, "args": {}},
    ]
    launches = count // 5
    for i in range(launches):
        ts, number = start + 60_000 + i * (100_000 // launches), step * PER_STEP + i + 2
        ids = {"External id": number, "correlation": number}
        shape = {"Input Dims": [[32, 64, 56, 56], [64, 64, 3, 3], []], "Call stack": STACK}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", **host,
             "ts": ts, "dur": 20.25, "args": {**shape, "External id": number}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host,
             "ts": ts + 5, "dur": 6.75, "args": {"cbid": 211, **ids}},
            {"ph": "X", "cat": "kernel", "name": f"void kernel_{i % 40}<float, 512>(int, int)",
             **stream, "ts": ts + 15, "dur": 9.5, "args": {"device": 0, "grid": [50, 1, 1], **ids}},
            {"ph": "s", "id": number, **host, "ts": ts + 5, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": number, **stream, "ts": ts + 15, "cat": "ac2g", "name": "ac2g"},
        ]  # fmt: skip
    return events


def write_trace(path: Path, count: int) -> None:
    """Write a trace of about `count` events to `path`."""
    steps = range(-(-count // PER_STEP))
    events = [event for step in steps for event in step_events(step, min(PER_STEP, count))]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1))


def measure(path: Path, times: int = 3) -> dict:
    """Read `path` in processes of its own; return the median seconds and the peak of memory."""
    command = [sys.executable, "-c", CHILD, str(path)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, check=True, cwd=REPOSITORY).stdout)
        for _ in range(times)
    ]
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {
        "events": content.count(b'"ph"'),
        "megabytes": len(content) / 1e6,
        "seconds": statistics.median(seconds for seconds, _, _ in runs),
        "memory_ratio": max(peak for _, peak, _ in runs) / len(content),
        "loaded": runs[0][2],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(path) for path in sys.argv[1:]] or [Path(folder) / "generated.json"]
        if not sys.argv[1:]:
            write_trace(paths[0], 75_000)
        for path in paths:
            r = measure(path)
            print(
                f"{path.name}: {r['events']:,} events, {r['megabytes']:.1f} MB uncompressed, "
                f"{r['seconds']:.2f} s, peak memory {r['memory_ratio']:.2f} x the uncompressed file"
            )
