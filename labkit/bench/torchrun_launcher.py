"""Start a distributed run's ranks: `python -m labkit.bench.torchrun_launcher FOLDER PARENT`.

It is torchrun, in a process that dies with the supervisor. It writes into the run's log which rank
failed and why; what they measure is in their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.instruments import lifetime
from labkit.orders import RanksOrder
from labkit.process import family
from labkit.stamps.events import FILE_NAME, EventLog, events_named

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def launch(order: RanksOrder, folder: Path, log: EventLog) -> int | None:
    """Start torchrun, and wait for it; return the exit code, None if it is 0."""
    log.write("hello", pid=os.getpid())
    log.stage("importing torch")
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; the bench sets its own
    log.stage("starting the ranks")
    options = [f"--nproc-per-node={order['ranks']}", "--max-restarts=0", "--standalone"]
    rank = ["-m", "labkit.bench.rank", str(folder), str(os.getpid())]
    try:
        torchrun.run(torchrun.parse_args(options + rank))
    except SignalException:
        log.write("stopped")
        return lifetime.INTERRUPTED
    except ChildFailedError as error:
        name_the_failed(error.failures, folder, log)
        return 1
    return None


def name_the_failed(failures: dict[int, ProcessFailure], folder: Path, log: EventLog) -> None:
    """Write which rank was killed, or raised first; the others only lost their peer."""
    log.write("ranks_ended", codes={rank: each.exitcode for rank, each in failures.items()})
    killed = [rank for rank, each in failures.items() if each.exitcode < 0]
    killed = [rank for rank in killed if failures[rank].exitcode != -signal.SIGTERM]  # torchrun's
    raised = {}
    for rank in failures:
        with contextlib.suppress(OSError, StopIteration):
            raised[rank] = next(events_named("error", folder / f"rank{rank}" / FILE_NAME))
    if raised and not killed:
        rank = min(raised, key=lambda rank: raised[rank]["t_ns"])
        why = f"{raised[rank]['kind']}: {raised[rank]['message']}"
        traceback = raised[rank]["traceback"]
    else:
        rank = next(iter(killed or failures))
        failed = failures[rank]
        why = f"process {failed.pid} was ended by {family.exit_name(failed.exitcode)}"
        traceback = None
    said = {"kind": f"Rank {rank}", "message": why, "traceback": traceback, "workers": {}}
    log.write("error", **said, failed_rank=rank)


if __name__ == "__main__":
    lifetime.serve(launch)
