"""The lesson holds here: `python maintain/benchmarks/lesson.py` prints ratios by pair.

CONTRIBUTING's claim about the default pipeline, without workers and with six, comes from this
script; it exits with 1 where the claim does not hold.
"""

import sys

import pandas as pd

from labkit import Pipeline, machine
from labkit.api import launch

PAIRS = 10

print(machine().line)
pairs = []
for _ in range(PAIRS):
    starved, fed = (launch(Pipeline(num_workers=n)).wait_or_raise() for n in (0, 6))
    ratio = fed.throughput / starved.throughput
    pairs.append({"ratio": ratio, "busy": starved.utilization, "busy, fed": fed.utilization})
rows = pd.DataFrame(pairs)
print(rows.round(2).to_string())
holds = rows["ratio"].min() >= 2.5 and (rows["busy, fed"] - rows["busy"]).min() >= 0.3
print(f"{'holds' if holds else 'FAILS'}: 2.5x the throughput and +0.3 busy in every pair")
sys.exit(not holds)
