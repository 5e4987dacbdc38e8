"""How fast scripts are beside `lk.run`: `python tests/benchmarks/script_speed.py [N]`.

Both in turn, N times each (7), the first of a pair drawn by a coin; the ratio of the medians,
script over run, with the 95 % interval of resampled pairs. The losses of a pair must be the same.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import labkit as lk

PIPELINES = {
    "default": {"steps": 120},
    "workers": {"steps": 400, "num_workers": 4, "persistent_workers": True},
    "array": {"steps": 800, "dataset": "array"},
    "textbook": {"steps": 60, "dataset": "sleep", "num_workers": 2},
}


def rate_of(way, file, pipeline):
    """Do it one way; return its losses and samples/s."""
    if way == "run":
        run = lk.run(pipeline)
        return np.array(run.loss, np.float32).tolist(), run.throughput
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    losses, rate = done.stdout.splitlines()
    losses = np.array(losses.split()[1:], np.float32)
    return losses.tolist(), float(rate.split()[0].replace(",", ""))


rounds, lot = int(sys.argv[1]) if len(sys.argv) > 1 else 7, random.Random(0)
for name, knobs in PIPELINES.items():
    pipeline = lk.Pipeline(seconds=None, xray=False, **knobs)
    rates = {"script": [], "run": []}
    with tempfile.TemporaryDirectory() as folder:
        file = lk.script(pipeline).save(f"{folder}/train.py")
        for turn in range(rounds + 1):
            losses = []
            for way in lot.sample(list(rates), 2):
                loss, rate = rate_of(way, file, pipeline)
                rates[way] += [rate] if turn else []  # the images are drawn, caches are warm
                losses.append(loss)
            assert losses[0] == losses[1] or lk.machine().kind == "gpu", "other losses"
    pairs = np.array([rates["script"], rates["run"]]).T
    drawn = np.random.default_rng(0).integers(0, rounds, (1000, rounds))
    again = np.median(pairs[drawn], axis=1)
    ratio = statistics.median(rates["script"]) / statistics.median(rates["run"])
    interval = np.percentile(again[:, 0] / again[:, 1], [2.5, 97.5]).round(3).tolist()
    print(json.dumps({"pipeline": name, "ratio": round(ratio, 3), "interval_95": interval,
                      "samples_per_s": {w: statistics.median(r) for w, r in rates.items()}}),
          flush=True)  # fmt: skip
