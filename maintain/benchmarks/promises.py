"""What a verdict promises against what its advice brings, on users' loops.

    python maintain/benchmarks/promises.py [--only NAME] [--rows F.json]

Each loop of `held_out.LOOPS` is watched as it is, its verdict is asked for, and the first change
that a program can make of the top advice is applied to its DataLoader. Both are then measured in
turn, without the watch and behind the start's burst of prefetched batches. Printed are the cause,
the change, the gain that was promised (None where the verdict says "unknown"), the gain that came,
and the ratio of the two. The target: within 1.5x in 11 of 12, and never slower.

Measured on a 2-core VM (AMD EPYC) with torch 2.13, on the five loops, too, that `held_out` has no
more:

| loop, workers | advice | promised | brought |
|---|---|---|---|
| 9 ms remote, 1 | 12 workers | 10.7x | 12.0x |
| heavy tail, 2 | in_order=False | 1.6x | 1.7x |
| numpy, 0 | 2 workers that are kept, 1 thread for the model | 1.7x | 1.5x |
| tokens, 0 | the same | 1.6x | 1.6x |
| zlib, 0 | 2 workers, 1 thread | 1.7x | 1.8x |
| stream, 0 | 6 workers | 5.1x | 7.0x |
| jpegs, 0 | 2 workers that are kept, 1 thread | 1.7x | 1.7x |
| csv, 4 | 1 thread for the model | 1.5x | 1.4x |
| json, 0 | 2 workers that are kept, 1 thread | 1.5x | 1.4x |
| spectrogram, 2 | 1 thread for the model | 1.6x | 1.4x |
| database, 0 | 1 worker that is kept | 1.4x | 1.3x |
| interface, 8 | 1 thread for the model | 1.3x | 1.1x |

Before a step on the CPU was advised to keep fewer threads than there are cores, two workers were
promised 1.7x to 1.9x there and brought 0.9x to 1.25x.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import held_out
import torch
from paired import endless, in_turn, rows_of
from torch.utils.data import DataLoader

import labkit as lk

# The workers that each loop has when it is watched; most people have none
START = {"9 ms remote": 1, "heavy tail": 2, "interface": 8}
SECONDS = 2.0  # of each measurement
ROUNDS = 2
WITHIN = 1.5
SLOWER = 0.95  # below this a change has made the loop slower; closer to 1 is noise
LOADER = {"batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory"}
Step = Callable[[Any], Any]


def rate(loader: DataLoader, step: Step) -> float:
    """Return batches a second of a loop, behind what was prefetched at its start."""
    burst = 3 + loader.num_workers * (loader.prefetch_factor or 0)
    for count, batch in enumerate(endless(loader), 1 - burst):
        step(batch)
        if count <= 0:
            begun = time.monotonic()
        elif (took := time.monotonic() - begun) >= SECONDS:
            return count / took


def verdict_of(loader: DataLoader, step: Step) -> Any:
    """Return the diagnosis of a loop that is watched for some seconds."""
    watched = lk.watch(loader, live=False)
    end = time.monotonic() + 2 * SECONDS
    for batch in endless(watched):
        step(batch)
        if time.monotonic() > end and watched.run.steps > 40:
            break
    watched.close()
    return watched.run.diagnose()


def promised_and_brought(name: str) -> dict[str, Any]:
    """Watch one loop, apply the top advice and measure both in turn."""
    dataset, step, batch_size = held_out.LOOPS[name]
    knobs = {"batch_size": batch_size, "num_workers": START.get(name, 0)}
    verdict = verdict_of(DataLoader(dataset, **knobs), step)
    first = verdict.findings[0]
    row = {"verdict": verdict.bottleneck, "cause": first.cause, "advice": first.advice}
    remedy = next(iter(first.remedies), None)
    if remedy is None or not set(remedy.changes) <= LOADER:
        return row
    changes = {**remedy.changes, **{name: eval(code) for name, code in remedy.arguments.items()}}
    if not changes and "set_num_threads" not in remedy.code:
        return row
    changed = DataLoader(dataset, **{**knobs, **changes})
    threads = torch.get_num_threads()

    def after() -> float:
        exec(remedy.code, {"torch": torch})  # the lines before the loader's, as they are printed
        found = rate(changed, step)
        torch.set_num_threads(threads)
        return found

    ways = {"before": lambda: rate(DataLoader(dataset, **knobs), step), "after": after}
    rates = in_turn(ways, ROUNDS).median()
    brought = round(float(rates["after"] / rates["before"]), 2)
    row |= {"change": str(changes), "promised": first.expected, "brought": brought}
    return row | {"ratio": round(first.expected[0] / brought, 2) if first.expected else None}


if __name__ == "__main__":
    torch.manual_seed(0)
    rows = rows_of(__doc__, held_out.LOOPS, promised_and_brought)
    known = rows.reindex(columns=["promised", "brought", "ratio"]).dropna()
    within = known["ratio"].between(1 / WITHIN, WITHIN).sum()
    slower = known.index[known["brought"] < SLOWER].tolist()
    print(f"of {len(rows)} loops promised in {len(known)}, within {WITHIN}x in {within}")
    print("slower:", *slower)
