"""Start a distributed run's ranks: `python -m labkit.bench.torchrun_launcher FOLDER PARENT`.

It is torchrun, in a process that dies with the supervisor and keeps the devices' locks for all
ranks. It writes into the run's log which rank failed and why; what they measure is in their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.bench import lifetime
from labkit.orders import RanksOrder
from labkit.process import device_lock, family
from labkit.process.events import FILE_NAME, EventLog, events_named

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Broken pipe")
CARDS = (
    "from labkit.bench.devices import card_uuid, usable_cards\n"
    "print(*(card_uuid(index) for index in usable_cards()[:{}]))"
)


def launch(order: RanksOrder, folder: Path, log: EventLog) -> int | None:
    """Take the devices, start torchrun, and wait for it; return the exit code, None if it is 0."""
    log.write("hello", pid=os.getpid())
    log.stage("importing torch")
    from torch import distributed

    if not distributed.is_available():
        raise RuntimeError(
            "this PyTorch was built without torch.distributed: install a wheel from pytorch.org."
        )
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    hold_devices(order, log)
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


def hold_devices(order: RanksOrder, log: EventLog) -> None:
    """Take the lock of every device that the ranks will use, in one order for all runs."""
    from labkit.bench.rank_devices import device_kind

    names = ["cpu"]
    if device_kind(order["pipeline"]["device"], order["ranks"])[0] == "cuda":
        # asked in another process: this one takes no memory on the cards
        asked = [sys.executable, "-c", CARDS.format(order["ranks"])]
        names = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    for name in sorted(names):
        device_lock.hold(Path(order["cache"]), name, order["run"], waiting=log.waiting)


def name_the_failed(failures: dict[int, ProcessFailure], folder: Path, log: EventLog) -> None:
    """Write which rank was killed or raised first; the others only lost their peer."""
    log.write("ranks_ended", codes={rank: each.exitcode for rank, each in failures.items()})
    killed = []
    raised = []  # (whether it only lost its peer, when, rank, event)
    for rank, failed in failures.items():
        if failed.exitcode < 0 and failed.exitcode != -signal.SIGTERM:
            killed.append(rank)
        with contextlib.suppress(OSError, StopIteration):
            error = next(events_named("error", folder / f"rank{rank}" / FILE_NAME))
            lost = any(text in error["message"] for text in LOST_PEER)
            raised.append((lost, error["t_ns"], rank, error))
    if raised and not killed:
        _, _, rank, error = min(raised, key=lambda found: found[:2])
        why = f"{error['kind']}: {error['message']}"
        traceback = error["traceback"]
    else:
        rank = killed[0] if killed else min(failures)
        how = family.exit_name(failures[rank].exitcode)
        why = f"process {failures[rank].pid} was ended by {how}"
        traceback = None
    log.write(
        "error",
        kind=f"Rank {rank}",
        message=why,
        traceback=traceback,
        workers={},
        failed_rank=rank,
    )


if __name__ == "__main__":
    lifetime.serve(launch)
