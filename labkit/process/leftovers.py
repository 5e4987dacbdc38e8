"""What a run leaves where its supervisor was killed: found, ended, and written down.

A run's plan (`launch.json`) is there from its start to its end, and its supervisor holds a lock on
it. A plan without a lock, whose kernel is gone too, is of a run that nobody was left to clear up
after; the next run does. Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import IO, Any

from labkit.process import family, step_log
from labkit.process.device_lock import try_lock
from labkit.process.events import FILE_NAME, RESERVE_NAME, EventLog

PLAN_NAME = "launch.json"
PAYLOADS = "*.pkl"  # the reader's own objects, on their way to a bench that ended before
LONGEST_PATH = 107  # bytes of a Unix socket's path
LONGEST_NAME = 20  # bytes of a slash and its name in the folder
SOCKETS = ("listener-*", "pym-*")  # what multiprocessing calls them


def plan_of(folder: str | os.PathLike) -> tuple[dict[str, Any], IO]:
    """Read the plan of a run and lock it; return both. The lock holds while the file is open."""
    file = open(os.path.join(folder, PLAN_NAME), encoding="utf-8")
    plan = json.load(file)
    with contextlib.suppress(OSError):  # a file system without locks
        try_lock(file.fileno())
    return plan, file


def clear(runs: Path) -> None:
    """See to the runs in `runs` whose kernel and supervisor are both gone."""
    for place in runs.glob(f"*/{PLAN_NAME}"):
        with contextlib.suppress(OSError, ValueError, KeyError), open(place) as file:
            plan = json.load(file)
            alive = plan["system"] != family.this_system() or family.exists(plan["kernel_pid"])
            if not alive and try_lock(file.fileno()):
                clear_up(place.parent, stop="kernel gone", code=None)


def clear_up(folder: Path, **how: Any) -> None:
    """End what is left of the run in `folder`, write the steps it finished and `how` it ended.

    Of a standby that no run was given to, nothing stays.
    """
    family.end_marked(folder)
    if not (folder / FILE_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    deadline, bench = time.monotonic() + 1, family.logged_bench(folder)
    while time.monotonic() < deadline and any(map(family.exists, bench)):
        time.sleep(0.01)
    family.remove_segments(family.logged_workers(folder))
    step_log.recover(folder)
    log = EventLog(folder)
    log.write("end", **how)
    log.close()
    remove_tools(folder)


def remove_tools(folder: str | os.PathLike) -> None:
    """Remove the files that a run needs only while it goes on, its plan last."""
    run = Path(folder)
    own = {socket_folder(folder, pid) for pid in family.logged_bench(folder)} - {run}
    sockets = (path for place in (run, *own) for name in SOCKETS for path in place.glob(name))
    for path in (*sockets, *run.glob(PAYLOADS), run / RESERVE_NAME, run / PLAN_NAME):
        with contextlib.suppress(OSError):
            path.unlink()
    for place in own:
        with contextlib.suppress(OSError):
            place.rmdir()


def socket_folder(run: str | os.PathLike, bench_pid: int) -> Path:
    """Return where a bench keeps its processes' sockets, so that a killed run's can be found.

    It is the run's folder, or where that path is too long, a short one of the bench's own. Left to
    itself multiprocessing makes a temporary folder, which every killed process leaves behind.
    """
    if len(os.fsencode(run)) + LONGEST_NAME <= LONGEST_PATH:
        return Path(run)
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"labkit-{bench_pid}"
