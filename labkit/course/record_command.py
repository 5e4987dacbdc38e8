"""`python -m labkit record`: the recorded runs of the course, made on this machine."""

from __future__ import annotations

import argparse
import json

EPILOG = """\
Records go to DIR/<machine>/<name>.jsonl.gz, without host name, user name, paths or keys.
Run it again to go on after an interrupt. To look at them:
  python -c "import labkit as lk; print(lk.recorded(folder='DIR'))"
"""


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add what `labkit record` takes to its parser."""
    sub.add_argument("--out", metavar="DIR", required=True, help="where the records go")
    sub.add_argument("--only", metavar="NAME", action="append", help="record this one (repeatable)")


def run(options: argparse.Namespace) -> int:
    """`labkit record`; returns 130 where it was interrupted."""
    from labkit.course.record import record

    done = record(options.out, options.only)
    print(json.dumps(done.to_dict(), allow_nan=False) if options.json else done)
    return 130 if done.interrupted else 0
