"""What a run leaves in its folder and in shared memory, and how it is cleared up.

A run's plan (`launch.json`) is there from start to end, locked by its supervisor. One without a
lock, whose kernel is gone too, is cleared up after by the next run. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import IO

from labkit.orders import Plan
from labkit.process.events import FILE_NAME, RESERVE_NAME, SPEC_NAME, EventLog, events_named
from labkit.process.family import end_marked, exists, this_system
from labkit.process.folder_rights import is_ours
from labkit.process.locks import try_lock
from labkit.process.step_ring import recover

PLAN_NAME = "launch.json"
PAYLOADS = "*.pkl"  # the user's own objects, on their way to a bench that ended before
LONGEST_PATH = 103  # bytes of a Unix socket's path on macOS; 107 on Linux
LONGEST_NAME = 20  # bytes of a slash and its name in the folder
SOCKETS = ("listener-*", "pym-*")  # what multiprocessing calls them


def logged_pids(folder: str | os.PathLike, name: str) -> set[int]:
    """Return the pids in the events `name` of a run's log, and its ranks': "hello" or "workers"."""
    found = set()
    for place in (Path(folder), *Path(folder).glob("rank*")):
        with contextlib.suppress(OSError):
            for event in events_named(name, place / FILE_NAME):
                found.update(event["pids"] if "pids" in event else [event["pid"]])
    return found


def remove_segments(pids: set[int]) -> None:
    """Unlink shared memory that dead torch processes left behind (`/dev/shm/torch_<pid>_...`)."""
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                path.unlink()


def plan_of(folder: str | os.PathLike) -> tuple[Plan, IO]:
    """Read the plan of a run and lock it; return both. The lock holds while the file is open."""
    file = open(os.path.join(folder, PLAN_NAME), encoding="utf-8")
    plan = json.load(file)
    with contextlib.suppress(OSError):  # a file system without locks
        try_lock(file.fileno())
    return plan, file


def clear(runs: Path) -> None:
    """See to the runs in `runs` whose kernel and supervisor are both gone."""
    for place in runs.glob(f"*/{PLAN_NAME}"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(place) as file:
                plan = json.load(file)
                alive = plan["system"] != this_system() or exists(plan["kernel_pid"])
                dead = not alive and try_lock(file.fileno())
                if dead:
                    clear_up(place.parent, stop="kernel gone", code=None)
            if dead:
                place.unlink(missing_ok=True)  # Windows removes no open file


def clear_up(folder: Path, **how: object) -> None:
    """End what is left of the run, write its steps and `how` it ended; keep no standby."""
    end_marked(folder)
    if not (folder / FILE_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    deadline = time.monotonic() + 1
    bench = logged_pids(folder, "hello")
    while time.monotonic() < deadline and any(map(exists, bench)):
        time.sleep(0.01)
    remove_segments(logged_pids(folder, "workers"))
    recover(folder)
    log = EventLog(folder)
    log.write("end", **how)
    log.close()
    remove_tools(folder)


def remove_tools(folder: str | os.PathLike) -> None:
    """Remove the files that a run needs only while it goes on, its plan last."""
    run = Path(folder)
    named = {socket_folder(folder, pid) for pid in logged_pids(folder, "hello")}
    own = [place for place in named - {run} if is_ours(place)]
    tools = [*run.glob(PAYLOADS), run / RESERVE_NAME, run / SPEC_NAME]
    for place in (run, *own):
        for name in SOCKETS:
            tools += place.glob(name)
    for path in (*tools, run / PLAN_NAME):
        with contextlib.suppress(OSError):
            path.unlink()
    for place in own:
        with contextlib.suppress(OSError):
            place.rmdir()


def socket_folder(run: str | os.PathLike, bench_pid: int) -> Path:
    """Return where a bench keeps its processes' sockets: else a killed one's would stay behind."""
    if len(os.fsencode(run)) + LONGEST_NAME <= LONGEST_PATH:
        return Path(run)
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"labkit-{bench_pid}"
