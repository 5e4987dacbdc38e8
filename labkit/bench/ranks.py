"""Starting the ranks of a distributed run: processes on this machine, each `labkit.bench`.

They meet through a file in the run's folder. Here the run's log is told which rank failed and why.
A rank writes what a single run does, into `FOLDER/rankN/events.jsonl`, and of each step when its
gradients were exchanged.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from labkit.orders import Order
from labkit.process import family
from labkit.stamps.events import FILE_NAME, EventLog, events_named

POLL_S = 0.05


def launch(order: Order, folder: Path, log: EventLog) -> int | None:
    """Start the ranks, and wait for them; return the exit code, None if it is 0."""
    log.stage("starting the ranks")
    command = [sys.executable, "-m", "labkit.bench", str(folder), str(os.getpid())]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(order["ranks"])]
    codes: list[int | None] = [None]
    while None in codes and not any(codes):
        time.sleep(POLL_S)
        codes = [rank.poll() for rank in ranks]
    failed = {rank: code for rank, code in enumerate(codes) if code}
    if not failed:
        return None
    name_the_failed(failed, folder, log)  # the others end with this process
    return 1


def name_the_failed(codes: dict[int, int], folder: Path, log: EventLog) -> None:
    """Write which rank was killed, or raised first, by the exit codes of those that failed.

    The others only lost their peer.
    """
    errors = {}
    for rank in codes:
        with contextlib.suppress(OSError, StopIteration):
            errors[rank] = next(events_named("error", folder / f"rank{rank}" / FILE_NAME))
    rank = min(codes, key=lambda rank: (codes[rank] > 0, errors.get(rank, {}).get("t_ns", 0)))
    error = errors.get(rank)
    why = f"{error['kind']}: {error['message']}" if error else None
    log.write(
        "error",
        kind=f"Rank {rank}",
        message=why or f"it was ended by {family.exit_name(codes[rank])}",
    )
