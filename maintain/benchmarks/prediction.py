"""How well `lk.predict` does: every workload is run once, other settings predicted, then measured.

    python maintain/benchmarks/prediction.py

Run it on a quiet machine. In each pass a workload is run and its settings right behind it, since a
machine with neighbours is not as fast at all times; what a setting shows, and what was predicted of
it, is the mean of the passes. An uneven machine needs more of them.

The workloads have not been used to make the model: its constants and ranges were set on six others.
Targets: utilization 3 points (median), 8 (90th percentile); throughput 8 % (median), 15 % (90th)
where waiting or the device is the limit, 12 % (median) where the cores are; range 90 %.

Measured on a 2-core AMD EPYC VM with torch 2.14.1: 39 settings on 6 workloads, each predicted from
one 4 s run of its workload and measured right behind it, all of it twice. Errors are median and
90th percentile; "twins" is what two measurements of the same setting differ by from their mean.

| held back by | settings | throughput off by | utilization off by, points | range held | twins |
|---|---|---|---|---|---|
| waiting for data | 16 | 4.0 %, 12.0 % | 0.9, 2.1 | 100 % | 2.6 % |
| stalls with a heavy tail | 7 | 4.1 %, 9.8 % | 0.8, 3.8 | 100 % | 2.6 % |
| the device | 14 | 4.7 %, 11.3 % | 0.4, 0.8 | 96 % | 2.8 % |
| the cores | 2 | 9.4 %, 10.1 % | 1.7, 2.1 | 100 % | 9.5 % |
| all | 39 | 4.6 %, 11.6 % | 0.6, 2.3 | 99 % | 3.1 % |

The same, with four terms that have left the model (cold caches after a wait, items that cost more
while the cores sleep, sharing and reading a batch that a worker sent) and six settings more, on
such a VM before: all, 4.0 %, 12.1 %; 1.7, 9.6 points; 96 %; twins 4.0 %. On a 2-core Xeon VM, one
pass: 4.1 %, 21.6 %; 1.9, 9.9 points; 93 %.

Not untouched: an early pass over these workloads was off by 13.5 % and showed what the model lacked
(a hand-off timed at rest), and the range was widened once, from 89 % held.
"""

import itertools
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-prediction-"))

import labkit as lk
from labkit.api import launch

PASSES = 2
SHORT = {"seconds": 1.8, "xray": False}  # a setting's run; a workload's own takes 4 s


def workers(*counts, **more):
    return [{"num_workers": n, **more} for n in counts]


WORKLOADS = {
    "heavy decode": (
        {"dataset": "jpeg", "io_ms": 0.0, "image_px": 128, "augment": 2, "batch_size": 8,
         "model": "mlp"},
        [*workers(1, 2, 3, 4, 6), {"num_workers": 2, "prefetch_factor": 1}],
    ),
    "arrays": (
        {"dataset": "array", "image_px": 48, "batch_size": 32, "num_workers": 1},
        [*workers(0, 2, 4), {"prefetch_factor": 6}, {"batch_size": 128},
         {"num_workers": 2, "io_ms": 0.3}],
    ),
    "sleeping": (
        {"dataset": "sleep", "batch_size": 16},
        [*workers(1, 2, 3, 4, 5, 7), {"num_workers": 3, "prefetch_factor": 1}],
    ),
    "storage waits": (
        {},
        [*workers(1, 2, 4, 6, 8), {"num_workers": 4, "io_ms": 5.0},
         {"num_workers": 2, "batch_size": 32}],
    ),
    "heavy tail": (
        {"dataset": "jpeg", "io_ms": 1.5, "stall_ms": 250.0, "stall_every": 15, "num_workers": 2},
        [*workers(0, 1, 4, 6), {"num_workers": 4, "prefetch_factor": 6},
         {"num_workers": 2, "prefetch_factor": 8}, {"num_workers": 4, "stall_ms": 120.0}],
    ),
    "large items": (
        {"dataset": "array", "image_px": 192, "io_ms": 0.5, "batch_size": 24, "model": "mlp"},
        [*workers(1, 2, 3, 4), {"num_workers": 2, "prefetch_factor": 6},
         {"num_workers": 2, "io_ms": 3.0}],
    ),
}  # fmt: skip


def recorded(pipeline, path):
    """Run a pipeline; return its record, which stays when older runs are deleted."""
    run = launch(pipeline).wait_or_raise()
    run.save(path)
    print(f"{path}: {run}", flush=True)
    return lk.load(path)


def measured(folder):
    """Return, for each setting, its runs and the run of its workload before each of them."""
    found = defaultdict(list)
    for turn, (name, (knobs, settings)) in itertools.product(range(PASSES), WORKLOADS.items()):
        pipeline = lk.Pipeline(**{"steps": 100_000, "seconds": 4.0, **knobs})
        base = recorded(pipeline, folder / name / f"base-{turn}.jsonl.gz")
        for i, changes in enumerate(settings):
            alone = not changes.get("num_workers", pipeline.num_workers)
            off = {"prefetch_factor": None, "persistent_workers": False} if alone else {}
            changed = pipeline.but(**SHORT, **changes, **off)
            run = recorded(changed, folder / name / f"{i}-{turn}.jsonl.gz")
            found[name, i].append((base, run))
    return found


def compared(name, i, pairs):
    """Predict one setting from the run before it, in each pass; hold it against what it did."""
    changes = WORKLOADS[name][1][i]
    row = {"workload": name, "changes": ", ".join(f"{knob}={changes[knob]}" for knob in changes)}
    found = [lk.predict(base, **SHORT, **changes) for base, _ in pairs]
    if cannot := next((one.cannot for one in found if one.cannot), None):
        return row | {"regime": cannot}
    rates = np.array([run.throughput for _, run in pairs])
    busy = fmean(run.utilization for _, run in pairs)
    low, high = np.transpose([one.throughput_range for one in found])
    tailed = pairs[0][1].pipeline.stall_ms
    return row | {
        "regime": "stalls" if tailed else found[0].limit,
        "error": fmean(one.throughput for one in found) / rates.mean() - 1,
        "points": 100 * (fmean(one.utilization for one in found) - busy),
        "range held": np.mean((low <= rates) & (rates <= high)),
        "twins": np.median(abs(rates / rates.mean() - 1)),
    }


def figures(rows):
    """Return a line of the second table: median and 90th percentile of the errors."""
    off = rows[["error", "points"]].abs().quantile([0.5, 0.9])
    return {
        "settings": len(rows),
        "throughput error": "{:.1%}, {:.1%}".format(*off["error"]),
        "utilization points": "{:.1f}, {:.1f}".format(*off["points"]),
        "range held": f"{rows['range held'].mean():.0%}",
        "twins": f"{rows['twins'].median():.1%}",
    }


found = measured(Path(os.environ["LABKIT_HOME"], "kept"))
rows = pd.DataFrame(compared(*setting, pairs) for setting, pairs in found.items())
print(rows.to_string(index=False))
told = rows.dropna(subset="error")
groups = dict(list(told.groupby("regime")))
groups["all"] = told
print(pd.DataFrame({name: figures(group) for name, group in groups.items()}).T)
