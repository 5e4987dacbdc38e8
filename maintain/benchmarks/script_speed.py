"""How fast scripts are beside `lk.run`: `python maintain/benchmarks/script_speed.py [N]`.

Both in turn, N times each (7), the first of a pair drawn by a coin; the ratio of the medians,
script over run, with the 95 % interval of resampled pairs.
"""

import random
import subprocess
import sys
import tempfile

from paired import median_95

import labkit as lk

PIPELINES = {
    "default": {"steps": 120},
    "workers": {"steps": 400, "num_workers": 4, "persistent_workers": True},
    "array": {"steps": 800, "dataset": "array"},
    "textbook": {"steps": 60, "dataset": "sleep", "num_workers": 2},
}


def rate_of(way, file, pipeline):
    """Do it one way; return samples/s."""
    if way == "run":
        return lk.run(pipeline).throughput
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    rate = done.stdout.splitlines()[-1].split()[0]
    return float(rate.replace(",", ""))


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
lot = random.Random(0)
for name, knobs in PIPELINES.items():
    pipeline = lk.Pipeline(seconds=None, xray=False, **knobs)
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        file = lk.script(pipeline).save(f"{folder}/train.py")
        for _ in range(rounds + 1):
            done = {way: rate_of(way, file, pipeline) for way in lot.sample(["script", "run"], 2)}
            rates.append([done["script"], done["run"]])
    # in the first pair images are drawn and caches are cold
    print("{}: {:.3f} (95 %: {:.3f} to {:.3f})".format(name, *median_95(rates[1:])))
