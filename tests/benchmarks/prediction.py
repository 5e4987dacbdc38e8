"""How well `lk.predict` does: every workload is run once, other settings predicted, then measured.

    python tests/benchmarks/prediction.py --records DIR [--workload NAME] [--json]

Every run is kept as a record in DIR, and what is there is not measured again: so it can be done in
parts, and the table made anew from the records alone (`--table`). Run it on a quiet machine.
There are two passes. In each, a workload is run and its settings right behind it, since a machine
with neighbours is not as fast at all times; a pass's settings are predicted from that pass's run,
and what a setting shows is the mean of both. A twin's difference from the mean says how far the
measurements themselves can be trusted.

The workloads of `EVALUATION` have not been used to make the model; those of `DEVELOPMENT` have:
the ranges are calibrated on them (`--development`).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-prediction-"))

import labkit as lk
from labkit.results.launch import launch

BASE_S, SETTING_S = 4.0, 1.8
MANY = 100_000  # steps: the seconds end the run
TARGETS = (
    "targets: utilization 3 points (median), 8 (90th percentile); throughput 8 % (median), 15 % "
    "(90th percentile) where waiting or the device is the limit, 12 % (median) where the cores "
    "are; range 90 %"
)


def workers(*counts, **more):
    return [{"num_workers": n, **more} for n in counts]


EVALUATION = {
    "light decode": (
        {"dataset": "jpeg", "io_ms": 0.0, "image_px": 32, "batch_size": 32},
        [*workers(1, 2, 3, 4), {"num_workers": 2, "prefetch_factor": 6}, {"batch_size": 96}],
    ),
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

DEVELOPMENT = {
    "dev decode": (
        {"dataset": "jpeg", "io_ms": 0.0, "image_px": 64, "batch_size": 12},
        [*workers(1, 2, 3, 5), {"num_workers": 2, "prefetch_factor": 4}],
    ),
    "dev decode, two workers": (
        {"dataset": "jpeg", "io_ms": 0.0, "image_px": 64, "batch_size": 12, "num_workers": 2},
        [*workers(0, 1, 4), {"batch_size": 24}],
    ),
    "dev waits": (
        {"dataset": "jpeg", "io_ms": 4.0, "image_px": 40, "batch_size": 24, "num_workers": 1},
        [*workers(0, 2, 4, 7), {"num_workers": 4, "io_ms": 2.0}],
    ),
    "dev arrays": (
        {"dataset": "array", "image_px": 64, "batch_size": 64},
        [*workers(1, 2, 3), {"batch_size": 16}],
    ),
    "dev tail": (
        {"dataset": "sleep", "prep_ms": 12.0, "stall_ms": 150.0, "stall_every": 12},
        [*workers(1, 2, 4), {"num_workers": 2, "prefetch_factor": 6}],
    ),
    "dev large": (
        {"dataset": "array", "image_px": 128, "io_ms": 1.0, "batch_size": 40, "model": "mlp",
         "num_workers": 2},
        [*workers(0, 1, 4), {"num_workers": 4, "io_ms": 0.3}],
    ),
}  # fmt: skip


def base_of(knobs):
    """The run that everything is predicted from."""
    return lk.Pipeline(**{"steps": MANY, "seconds": BASE_S, **knobs})


def measured_as(pipeline, changes):
    """The pipeline that is measured: shorter, and with no x-ray."""
    knobs = {"num_workers": pipeline.num_workers, **changes}
    if not knobs["num_workers"]:
        knobs |= {"prefetch_factor": None, "persistent_workers": False}
    return pipeline.but(**{"seconds": SETTING_S, "xray": False, **knobs})


def record(pipeline, path):
    """Measure `pipeline` and keep its record, unless it is there already."""
    if path.exists():
        return
    run = launch(pipeline).wait()
    if run.outcome != "finished":
        raise SystemExit(f"{path.stem}: {run.error}")
    run.save(path)
    print(f"{time.strftime('%H:%M:%S')} {path.parent.name}/{path.stem}: {run}", file=sys.stderr)


def measure(workloads, folder):
    """Make the records of `workloads` that are missing."""
    for turn in (0, 1):
        for name, (knobs, settings) in workloads.items():
            record(base_of(knobs), folder / name / f"base-{turn}.jsonl.gz")
            for i, changes in enumerate(settings):
                pipeline = measured_as(base_of(knobs), changes)
                record(pipeline, folder / name / f"{i}-{turn}.jsonl.gz")


def rows_of(workloads, folder):
    """Predict and compare every setting that was measured twice."""
    rows = []
    for name, (_, settings) in workloads.items():
        home = folder / name
        for i, changes in enumerate(settings):
            files = [(home / f"base-{n}.jsonl.gz", home / f"{i}-{n}.jsonl.gz") for n in (0, 1)]
            if all(base.exists() and file.exists() for base, file in files):
                pairs = [(lk.load(base), lk.load(file)) for base, file in files]
                rows.append(compare(name, changes, pairs))
    return rows


def compare(name, changes, pairs):
    """Predict one setting from the run before it, twice, and hold it against what it measured."""
    target = {"seconds": SETTING_S, "xray": False, **changes}
    start = time.perf_counter()
    found = [lk.predict(base, **target) for base, _ in pairs]
    ms = 1e3 * (time.perf_counter() - start) / len(pairs)
    rates = [run.throughput for _, run in pairs]
    row = {"workload": name, "changes": changes, "throughput": statistics.mean(rates),
           "utilization": statistics.mean(run.utilization for _, run in pairs),
           "base_throughput": statistics.mean(base.throughput for base, _ in pairs),
           "cannot": next((one.cannot for one in found if one.cannot), None),
           "twins": abs(rates[0] - rates[1]) / sum(rates)}  # fmt: skip
    if row["cannot"]:
        return row | {"regime": "cannot"}
    rate = statistics.mean(one.throughput for one in found)
    share = statistics.mean(one.utilization for one in found)
    held = [one.throughput_range[0] <= run.throughput <= one.throughput_range[1]
            for one, (_, run) in zip(found, pairs, strict=True)]  # fmt: skip
    return row | {
        "predicted_throughput": rate,
        "predicted_utilization": share,
        "error": rate / row["throughput"] - 1,
        "errors": [one.throughput / measured - 1
                   for one, measured in zip(found, rates, strict=True)],
        "points": 100 * (share - row["utilization"]),
        "inside": sum(held) / len(held),
        "utilization_inside": statistics.mean(
            one.utilization_range[0] <= run.utilization <= one.utilization_range[1]
            for one, (_, run) in zip(found, pairs, strict=True)
        ),
        "regime": regime(pairs[0][0], changes, found[0]),
        "ms": ms,
    }  # fmt: skip


def regime(base, changes, found):
    """Name what holds the setting back, heavy tails apart."""
    if changes.get("stall_ms", base.pipeline.stall_ms):
        return "heavy-tailed"
    return {"input": "waiting-bound", "device": "device-bound", "cpu": "CPU-saturated"}[found.limit]


def summary(rows):
    """Return the figures by regime, and of all."""
    groups = {}
    for row in rows:
        groups.setdefault(row["regime"], []).append(row)
    groups.pop("cannot", None)
    told = [row for group in groups.values() for row in group]
    figures = {name: figures_of(group) for name, group in sorted(groups.items())}
    free = [row for row in told if row["regime"] != "CPU-saturated"]
    if free:
        figures["not CPU-saturated"] = figures_of(free)
    if told:
        figures["all"] = figures_of(told)
    return figures


def figures_of(rows):
    """Median and 90th percentile of the errors, and how often the range held."""
    errors = sorted(abs(row["error"]) for row in rows)
    points = sorted(abs(row["points"]) for row in rows)
    return {
        "n": len(rows),
        "throughput_error": percentile(errors, 50),
        "throughput_error_90": percentile(errors, 90),
        "utilization_points": percentile(points, 50),
        "utilization_points_90": percentile(points, 90),
        "coverage": sum(row["inside"] for row in rows) / len(rows),
        "utilization_coverage": sum(row["utilization_inside"] for row in rows) / len(rows),
        "twins": percentile(sorted(row["twins"] for row in rows), 50),
    }


def percentile(ordered, percent):
    """Return the percentile of a sorted list, between neighbours by interpolation."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def show(rows, figures):
    """Print both tables."""
    print(f"{'workload':24}{'changes':44}{'measured':>10}{'predicted':>10}{'error':>8}"
          f"{'busy':>6}{'pred':>6}{'  range held':12} regime")  # fmt: skip
    for row in rows:
        knobs = ", ".join(f"{k}={v}" for k, v in row["changes"].items())
        if row["cannot"]:
            print(f"{row['workload']:24}{knobs:44}{row['throughput']:10.0f}  {row['cannot']}")
            continue
        print(
            f"{row['workload']:24}{knobs:44}{row['throughput']:10.0f}"
            f"{row['predicted_throughput']:10.0f}{row['error']:+8.0%}{row['utilization']:6.0%}"
            f"{row['predicted_utilization']:6.0%}{row['inside']:10.0%}   "
            f"{row['regime']}"
        )
    print(f"\n{'regime':20}{'n':>4}{'throughput error':>20}{'utilization points':>20}"
          f"{'range held':>12}{'twins':>8}")  # fmt: skip
    for name, f in figures.items():
        rates = f"{f['throughput_error']:.1%}, {f['throughput_error_90']:.1%}"
        points = f"{f['utilization_points']:.1f}, {f['utilization_points_90']:.1f}"
        print(f"{name:20}{f['n']:4}{rates:>20}{points:>20}{f['coverage']:12.0%}{f['twins']:8.1%}")
    print("(errors: median, 90th percentile)\n" + TARGETS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--workload", action="append", help="only this one; may be repeated")
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    workloads = DEVELOPMENT if asked.development else EVALUATION
    wanted = asked.workload or workloads
    workloads = {name: workloads[name] for name in wanted}
    if not asked.table:
        measure(workloads, asked.records)
    rows = rows_of(workloads, asked.records)
    figures = summary(rows)
    if asked.json:
        print(json.dumps({"figures": figures, "rows": rows}))
    else:
        show(rows, figures)


if __name__ == "__main__":
    main()
