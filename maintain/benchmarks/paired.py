"""What the benchmarks share: which way is measured next, how sure what they say is, and its rows.

Blocks of one way and then of another cannot resolve 1 %: on a noisy machine two blocks of the same
work differ by 3 to 5 %. So a lot decides, each time anew, which way is timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def by_lot(ways: Sequence[Callable[[], object]], times: int) -> list[np.ndarray]:
    """Do one of the `ways` `times` times, drawn by lot; return what each call of each took, ns.

    That is CPU time of this thread: where others want the core, wall time is mostly their doing.
    """
    lot = random.Random(0)
    took: list[list[int]] = [[] for _ in ways]
    for _ in range(times):
        drawn = lot.randrange(len(ways))
        start = time.thread_time_ns()
        ways[drawn]()
        took[drawn].append(time.thread_time_ns() - start)
    return [np.array(each) for each in took]


def added(plain: np.ndarray, more: np.ndarray) -> tuple[float, float]:
    """Return what the mean of `more` is above that of `plain`, and what it may be off by (95 %).

    The slowest 1 % of both are left out: what else the machine had to do.
    """
    sides = [np.sort(side)[: -len(side) // 100] for side in (plain, more)]
    variance = sum(side.var() / len(side) for side in sides)
    return sides[1].mean() - sides[0].mean(), 1.96 * variance**0.5


def in_turn(ways: Mapping[Any, Callable[[], Any]], rounds: int) -> pd.DataFrame:
    """Measure each of the `ways` once a round, in an order drawn by lot; return a row a round."""
    lot = random.Random(0)
    drawn = (lot.sample(list(ways), len(ways)) for _ in range(rounds))
    return pd.DataFrame({name: ways[name]() for name in names} for names in drawn)


def all_hold(claims: Mapping[str, bool]) -> bool:
    """Print which claims hold; return whether all do."""
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return all(claims.values())


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield from `batches` again and again."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


def rows_of(doc: str, names: Iterable[str], measure: Callable[[str], dict]) -> pd.DataFrame:
    """Measure what the command line asks for, each by its name; return a row for each.

    With `--rows` a file keeps them, so that the whole can be measured in pieces on a quiet machine.
    """
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--rows", type=Path, help="JSON file of rows: these are not measured again")
    options = parser.parse_args()
    file = options.rows
    kept = json.loads(file.read_text()) if file and file.exists() else {}
    asked = [name for name in names if options.only in name]
    for name in asked:
        if name not in kept:
            kept[name] = measure(name)
            print(f"{name}: {kept[name]}", flush=True)
            if file:
                file.write_text(json.dumps(kept, indent=1))
    return pd.DataFrame([kept[name] for name in asked], index=asked)
