"""`python -m labkit tune`: settings for a pipeline, or for a dataset of one's own."""

from __future__ import annotations

import argparse
import json
import os
import sys

from labkit.spec import Pipeline, parse_settings
from labkit.tuner.tuning import Tuning


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add what `labkit tune` takes to its parser."""
    sub.add_argument(
        "dataset", nargs="?", metavar="MODULE:FUNCTION", help="a function that returns your dataset"
    )
    sub.add_argument("--collate", metavar="MODULE:NAME", help="your collate_fn")
    sub.add_argument("--step", metavar="MODULE:NAME", help="what your loop does with a batch")
    sub.add_argument(
        "--batch-size", metavar="N[,N...]", help="to tune for; several: to search among"
    )
    sub.add_argument("--max-workers", type=int, metavar="N", help="the most workers to try")
    sub.add_argument("--seconds", type=float, default=1.5, help="to measure each setting for")
    sub.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", dest="settings",
        help="without MODULE:FUNCTION: the pipeline; with it: the loader settings you have now",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """`labkit tune`; returns 130 where it was interrupted, having printed the best so far."""
    from labkit.show.tuning import tune  # not needed by the other commands, and slow to load

    knobs = parse_settings(options.settings)
    sizes = [int(size) for size in options.batch_size.split(",")] if options.batch_size else None
    more = {
        "batch_size": sizes,
        "max_workers": options.max_workers,
        "seconds": options.seconds,
    }
    if options.dataset:
        what = options.dataset
        more |= {"collate_fn": options.collate, "step": options.step, "baseline": knobs}
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    elif options.collate or options.step:
        raise ValueError("--collate and --step go with MODULE:FUNCTION, a dataset of your own.")
    else:
        what = Pipeline(**knobs)
    try:
        code, tuning = 0, tune(what, **more)
    except KeyboardInterrupt:
        code, tuning = 130, getattr(tune, "last", None)
        if tuning is None or tuning.winner is None:
            raise
    answer(tuning, options.json)
    return code


def answer(tuning: Tuning, as_json: bool) -> None:
    """Print the result."""
    print(json.dumps(tuning.to_dict(), allow_nan=False) if as_json else repr(tuning))
