"""One run: `python -m labkit.bench FOLDER SUPERVISOR_PID` measures what FOLDER's order asks for.

Everything that happens is in the event log; the exit code is 0 if the run finished, 1 if not.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

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


def run(order: Order, folder: Path, log: EventLog) -> None:
    """Do what the order asks for."""
    log.write("hello", pid=os.getpid())
    log.stage("importing torch")
    gc.disable()  # importing torch takes it a sixth of the time
    from labkit.bench import carry_out

    carry_out.do(order, folder, log)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    if lifetime.stands_by():
        warm_up()
        lifetime.wait_for_run()
    lifetime.serve(run)
