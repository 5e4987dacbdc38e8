"""One run: `python -m labkit.bench FOLDER PARENT [RANK]` measures what FOLDER's order asks for.

PARENT is the process that it does not outlive. Of a distributed run it starts the ranks, each of
which is such a process too, with its number.

Everything that happens is in the event log; the exit code is 0 if the run finished, 1 if not.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

from labkit.bench import ranks
from labkit.instruments import lifetime
from labkit.orders import Order
from labkit.process.family import die_with
from labkit.stamps.events import EventLog


def warm_up() -> None:
    """Import what a run needs, and touch no device; everything else each run does for itself."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    from labkit.bench import carry_out, measure  # noqa: F401

    # or the run's first collection would look at all of torch: 0.1 s. `gc.freeze` would spare all
    # of a run's collections that, which training has to bear: the slow script waits 5x as long
    gc.collect()


def run(order: Order, folder: Path, log: EventLog) -> int | None:
    """Do what the order asks for; return the exit code, None if it is 0."""
    log.write("hello", pid=os.getpid())
    if "ranks" in order:
        return ranks.launch(order, folder, log)
    log.stage("importing torch")
    gc.disable()  # importing torch takes it a sixth of the time
    from labkit.bench import carry_out

    return carry_out.do(order, folder, log)


def train_rank(order: Order, folder: Path, log: EventLog) -> None:
    """Train as one of the ranks."""
    from labkit.bench.rank import train_one

    train_one(order, folder, log)


if __name__ == "__main__":
    if sys.argv[3:]:
        lifetime.serve(train_rank, f"rank{sys.argv[3]}")
    die_with(int(sys.argv[2]))
    if lifetime.stands_by():
        warm_up()
        lifetime.wait_for_run()
    lifetime.serve(run)
