"""Score the diagnosis on the labelled fault set: a quarter of an hour on a CPU.

`python maintain/benchmarks/faults.py [--only NAME] [--seeds 5] [--keep FILE]`; with `--keep` it can
be stopped, and goes on where it was. The exit code is 1 where fewer than 90 % are named right.
"""

import argparse
import os
import sys
from pathlib import Path

MAINTAIN = str(Path(__file__).parents[1])
sys.path.insert(0, MAINTAIN)
# The bench that a fault is planted in imports it, too
os.environ["PYTHONPATH"] = os.pathsep.join([MAINTAIN, os.environ.get("PYTHONPATH", "")])

from faultset import run_set  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--keep", metavar="FILE")
    score = run_set(**vars(parser.parse_args()))
    print(score)
    sys.exit(score.accuracy < 0.9)
