"""What a run leaves in its folder and in shared memory, and how it is cleared up.

A run's plan (`launch.json`) is there from start to end, locked by its supervisor. One without a
lock, whose kernel is gone too, is cleared up after by the next run. Only a folder that has labkit's
mark is ever deleted. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

from labkit.orders import Order
from labkit.process.family import end_marked, exists, this_system
from labkit.stamps.events import FILE_NAME, SPEC_NAME, EventLog, events_named
from labkit.stamps.folder_rights import (
    MOST_BYTES,
    is_locked,
    is_ours,
    is_own_file,
    private,
    text_of,
    try_lock,
)
from labkit.stamps.step_ring import RING_NAME, recover

MARK_NAME = "labkit-run"  # a file in a run's folder, which holds the folder's name
PLAN_NAME = "launch.json"
LONGEST_END_S = 4.0  # that ending the processes of a run takes
# Why a run was stopped: `stop` of its `end` event
ON_REQUEST = "asked"
KERNEL_GONE = "kernel gone"
PAYLOADS = "*.pkl"  # the user's own objects, on their way to a bench that ended before


def is_run(folder: Path) -> bool:
    """Whether labkit made the folder, under this name, for a run of this user's."""
    return is_ours(folder) and text_of(folder / MARK_NAME) == folder.name


def delete_run(folder: Path) -> None:
    """Delete a run's folder; one without the mark, or a link, stays."""
    if is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)


def logged_pids(folder: str | os.PathLike, name: str) -> set[int]:
    """Return the pids in the events `name` of a run's log, and its ranks': "hello" or "workers"."""
    found = []
    for place in (Path(folder), *Path(folder).glob("rank*")):
        with contextlib.suppress(OSError):
            for event in events_named(name, place / FILE_NAME):
                found += event["pids"] if "pids" in event else [event["pid"]]
    return {pid for pid in found if type(pid) is int and pid > 1}


def remove_segments(pids: set[int]) -> None:
    """Unlink shared memory that dead torch processes left behind (`/dev/shm/torch_<pid>_...`).

    A log may name anybody's: what is not this user's, or of a process that lives, stays.
    """
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                if is_own_file(os.lstat(path)) and not exists(pid):
                    path.unlink()


def plan_of(folder: str | os.PathLike) -> tuple[Order, IO]:
    """Read the plan of a run and lock it; return both. The lock holds while the file is open."""
    file = open(os.path.join(folder, PLAN_NAME), encoding="utf-8", opener=private)
    plan = json.load(file)
    with contextlib.suppress(OSError):  # a file system without locks
        try_lock(file.fileno())
    return plan, file


def clear(runs: Path) -> None:
    """See to the runs in `runs` whose kernel and supervisor are both gone."""
    for place in runs.glob(f"*/{PLAN_NAME}"):
        with contextlib.suppress(Exception), open(place, opener=private) as file:
            plan = json.loads(file.read(MOST_BYTES))  # whatever stands in it
            is_dead = plan["system"] == this_system() and not exists(plan["kernel_pid"])
            if is_dead and is_run(place.parent) and try_lock(file.fileno()):
                clear_up(place.parent, stop=KERNEL_GONE, code=None)


def wait_for_supervisor(folder: Path) -> None:
    """Wait until no supervisor has the run any more, for as long as one takes to end a run."""
    deadline = time.monotonic() + LONGEST_END_S
    while is_locked(folder / PLAN_NAME) and time.monotonic() < deadline:
        time.sleep(0.01)


def clear_up(folder: Path, **how: object) -> None:
    """End what is left of the run, write its steps and `how` it ended; keep no standby."""
    bench = logged_pids(folder, "hello")  # each the first of its session
    end_marked(folder, bench)
    if not (folder / FILE_NAME).exists():
        delete_run(folder)
        return
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and any(map(exists, bench)):
        time.sleep(0.01)
    remove_segments(logged_pids(folder, "workers"))
    recover(folder)
    EventLog(folder).write("end", **how)
    remove_tools(folder)


def recover_loop(folder: Path) -> None:
    """Write the steps that a watched loop left in its ring when its process was killed."""
    is_left = (folder / RING_NAME).exists() and not (folder / PLAN_NAME).exists()
    if is_left and not any(map(exists, logged_pids(folder, "hello"))):
        recover(folder)


def remove_tools(folder: str | os.PathLike[str]) -> None:
    """Remove the files that a run needs only while it goes on, its plan last."""
    run = Path(folder)
    for sockets in map(socket_folder, logged_pids(folder, "hello")):
        if is_ours(sockets):
            shutil.rmtree(sockets, ignore_errors=True)
    for path in (*run.glob(PAYLOADS), run / SPEC_NAME, run / PLAN_NAME):
        with contextlib.suppress(OSError):
            path.unlink()


def socket_folder(bench_pid: int) -> Path:
    """Return where a bench keeps its processes' sockets: else a killed one's would stay behind.

    Not in the run's own folder: a socket's path is a short one.
    """
    return Path(tempfile.gettempdir()) / f"labkit-{bench_pid}"
