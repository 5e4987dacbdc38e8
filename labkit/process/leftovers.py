"""What a run leaves where its supervisor was killed: found, ended, and written down.

A run's plan (`launch.json`) is there from its start to its end, and its supervisor holds a lock on
it. A plan without a lock, whose kernel is gone too, is of a run that nobody was left to clear up
after; the next run does. Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from labkit.process import family as processes
from labkit.process import step_log
from labkit.process.events import RESERVE_NAME, EventLog
from labkit.process.sockets import remove_sockets

PLAN_NAME = "launch.json"
PAYLOADS = "*.pkl"  # the reader's own objects, on their way to a bench that ended before


def plan_of(folder: str | os.PathLike) -> tuple[dict[str, Any], IO]:
    """Read the plan of a run and lock it; return both. The lock holds while the file is open."""
    file = open(os.path.join(folder, PLAN_NAME), encoding="utf-8")
    plan = json.load(file)
    _lock(file)
    return plan, file


def clear(runs: Path) -> None:
    """See to the runs in `runs` whose kernel and supervisor are both gone."""
    for place in runs.glob(f"*/{PLAN_NAME}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(place) as file:
            plan = json.load(file)
            if plan["system"] != processes.this_system() or processes.exists(plan["kernel_pid"]):
                continue
            if _lock(file):
                clear_up(place.parent, stop="kernel gone", code=None)


def clear_up(folder: Path, **how: Any) -> None:
    """End what is left of the run in `folder`, write the steps it finished and `how` it ended."""
    processes.end_marked(folder)
    processes.wait_until_gone(processes.logged_bench(folder))
    processes.remove_segments(processes.logged_workers(folder))
    step_log.recover(folder)
    log = EventLog(folder)
    log.write("end", **how)
    log.close()
    remove_tools(folder)


def remove_tools(folder: str | os.PathLike) -> None:
    """Remove the files that a run needs only while it goes on, its plan last."""
    remove_sockets(folder, processes.logged_bench(folder))
    unread = Path(folder).glob(PAYLOADS)
    for path in (*unread, Path(folder) / RESERVE_NAME, Path(folder) / PLAN_NAME):
        with contextlib.suppress(OSError):
            path.unlink()


def _lock(file: IO) -> bool:
    if sys.platform == "win32":
        return False  # there the job object ends everything, and nothing is left
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
