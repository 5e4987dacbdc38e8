"""Store excerpts of the public traces for readers without a network.

`python maintain/trace_lanes.py` writes labkit/data/trace_lanes.json: {trace: {lane: [[start, end],
...]}} in ms. Time is cut into bins; a lane counts as active in a bin where it is for half of it or
more.
"""

import json
from pathlib import Path

import numpy as np

import labkit as lk

FILE = Path(lk.__file__).parent / "data" / "trace_lanes.json"
BINS = 1000
# (start, end) in ms after the first step of each trace: the pictures of notebook 10
EXCERPTS = {
    "v100-workers-0": (0, 363.1),
    "v100-workers-4": (182.3, 435.7),
    "rtx2080ti-sawtooth": (7000, 10500),
    "rtx2080ti-launch-bound": (1500, 1506),
    "v100-busy-fp32": (0, 196.9),
    "h100-preprocessing": (0, 382.5),
    "h100-batch-1": (0, 4.43),
    "a100-ddp-rank0": (209, 426),
}


def binned(spans: np.ndarray, start: float, end: float) -> list[list[float]]:
    """Return the stretches of bins in which the spans cover half the time or more."""
    edges = np.linspace(start, end, BINS + 1)
    lengths = np.append(0, np.cumsum(spans[:, 1] - spans[:, 0]))
    index = np.maximum(np.searchsorted(spans[:, 0], edges, side="right") - 1, 0)
    into = np.clip(edges - spans[index, 0], 0, spans[index, 1] - spans[index, 0])
    active = np.diff(lengths[index] + into) >= 0.5 * (end - start) / BINS
    change = np.flatnonzero(np.diff(np.concatenate([[False], active, [False]])))
    return edges[change].reshape(-1, 2).round(4).tolist()


def excerpt(trace: "lk.Breakdown", start: float, end: float) -> dict[str, list[list[float]]]:
    steps = trace.lanes["steps"]
    inside = steps[(steps[:, 0] >= start - 0.1) & (steps[:, 1] <= end + 0.1)]
    found = {"steps": inside.round(3).tolist()} if len(inside) else {}
    for name, spans in trace.lanes.items():
        if name != "steps":
            found[name] = binned(spans, start, end)
    return {name: spans for name, spans in found.items() if spans}


if __name__ == "__main__":
    stored = {}
    for trace_name, window in EXCERPTS.items():
        stored[trace_name] = excerpt(lk.public_trace(trace_name), *window)
    FILE.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
