"""Score the diagnosis on the labelled fault set: a quarter of an hour on a CPU.

`python maintain/benchmarks/faults.py [--only NAME] [--seeds 5] [--keep FILE]`; with `--keep` it can
be stopped, and goes on where it was.
"""

import argparse

from labkit.course.faultset import run_set

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--keep", metavar="FILE")
    print(run_set("scoring", **vars(parser.parse_args())))
