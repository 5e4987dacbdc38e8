"""The lesson holds here: `python maintain/benchmarks/lesson.py` prints ratios by pair.

CONTRIBUTING's claim about the default pipeline, without workers and with six, comes from this
script; it exits with 1 where the claim does not hold.
"""

import sys

from paired import all_hold, in_turn

from labkit import Pipeline, machine
from labkit.api import launch

PAIRS = 10

print(machine().line)
starved, fed = Pipeline(), Pipeline(num_workers=6)
ways = {"starved": lambda: launch(starved).wait_or_raise()}
ways["fed"] = lambda: launch(fed).wait_or_raise()
runs = in_turn(ways, PAIRS)
rates = runs.map(lambda run: run.throughput)
busy = runs.map(lambda run: run.utilization)
ratios = rates["fed"] / rates["starved"]
gained = busy["fed"] - busy["starved"]
print(rates.join(busy.add_suffix(" busy")).assign(ratio=ratios).round(2).to_string())
claim = "2.5x the throughput and +0.3 busy in every pair"
sys.exit(not all_hold({claim: ratios.min() >= 2.5 and gained.min() >= 0.3}))
