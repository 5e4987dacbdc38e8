"""How fast scripts are beside `lk.run`: `python maintain/benchmarks/script_speed.py [ROUNDS]`.

Both in turn, ROUNDS times each (7), which of a pair comes first drawn by lot; the median of the
pairs' ratios, script over run, with its 95 % interval. Target: within 5 %.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from paired import median_95

import labkit as lk

ROUNDS = 7
PIPELINES = {
    "default": {"steps": 120},
    "workers": {"steps": 400, "num_workers": 4, "persistent_workers": True},
    "array": {"steps": 800, "dataset": "array"},
    "textbook": {"steps": 60, "dataset": "sleep", "num_workers": 2},
}


def rate_of(file: Path) -> float:
    """Run a script; return the samples/s that it prints at its end."""
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    rate = done.stdout.splitlines()[-1].split()[0]
    return float(rate.replace(",", ""))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    lot = random.Random(0)
    for name, knobs in PIPELINES.items():
        pipeline = lk.Pipeline(seconds=None, xray=False, **knobs)
        ratios = []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "train.py"
            lk.script(pipeline).save(file)
            for _ in range(rounds + 1):
                rates = {}
                for way in lot.sample(["script", "run"], 2):
                    rates[way] = rate_of(file) if way == "script" else lk.run(pipeline).throughput
                ratios.append(rates["script"] / rates["run"])
        # in the first pair images are drawn and caches are cold
        print("{}: {:.3f} (95 %: {:.3f} to {:.3f})".format(name, *median_95(ratios[1:])))


if __name__ == "__main__":
    main()
