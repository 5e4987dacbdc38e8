"""The processes of a run, from start to end: who they are, how to end them, what they leave.

A run's plan (`launch.json`) is there from start to end, locked by its supervisor. One without a
lock, whose kernel is gone too, is cleared up after by the next run. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from labkit.process.events import FILE_NAME, RESERVE_NAME, EventLog, recover

PLAN_NAME = "launch.json"
PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up
PAYLOADS = "*.pkl"  # the reader's own objects, on their way to a bench that ended before
LONGEST_PATH = 107  # bytes of a Unix socket's path
LONGEST_NAME = 20  # bytes of a slash and its name in the folder
SOCKETS = ("listener-*", "pym-*")  # what multiprocessing calls them

MARK = "LABKIT_RUN"  # in the environment of a run's processes: the run's folder
KEY_ENDINGS = ("_API_KEY", "_TOKEN")  # of variables that only the process that logs may see
NO_KEYS = ("AWS_SESSION_TOKEN",)  # a reader's own dataset may lie in a bucket
# They clean up behind the others and leave by themselves when the last one is gone
CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


def _processes(what: str) -> list[tuple[int, bytes]]:
    """Return (pid, content of its file `what` in /proc) of all that let us read it."""
    pids = filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())
    return [(int(pid), text) for pid in pids if (text := _read(pid, what))]


def _read(pid: int | str, what: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()
    return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Return the pids of all living processes below `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    for pid, stat in _processes("stat"):
        # pid (comm) state ppid ...; comm may hold spaces and brackets
        state, parent = stat.rpartition(b")")[2].split()[:2]
        if state != b"Z":
            children.setdefault(int(parent), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def end_all(root: int, seen: set[int]) -> dict[int, int]:
    """SIGKILL all below `root`, cleaners at the deadline only; return {pid: wait status}."""
    deadline = time.monotonic() + 1.0
    statuses: dict[int, int] = {}
    while (alive := descendants(root)) and time.monotonic() < deadline + 0.5:  # hung in a driver
        seen.update(alive)
        for pid in alive:
            command = _read(pid, "cmdline")
            if time.monotonic() > deadline or not any(name in command for name in CLEANERS):
                _kill(pid)
        time.sleep(0.003)
        statuses |= reap()
    return statuses | reap()


def reap() -> dict[int, int]:
    """Collect every dead child; return {pid: wait status}."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def logged_pids(folder: str | os.PathLike, name: str) -> set[int]:
    """Return the pids in the events `name` of a run's log, and its ranks': "hello" or "workers"."""
    start, found = f'{{"event":"{name}"'.encode(), set()
    for place in (Path(folder), *Path(folder).glob("rank*")):
        with contextlib.suppress(OSError, ValueError), open(place / FILE_NAME, "rb") as log:
            for line in log:
                if line.startswith(start) and line.endswith(b"\n"):
                    event = json.loads(line)
                    found.update(event["pids"] if "pids" in event else [event["pid"]])
    return found


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the keys of services: measuring needs none of them."""
    keys = {name for name in environment if name.upper().endswith(KEY_ENDINGS)} - {*NO_KEYS}
    return {name: value for name, value in environment.items() if name not in keys}


def this_system() -> str:
    """Return what tells this boot and process namespace from others: pids count only in one."""
    with contextlib.suppress(OSError):
        boot = _read("sys", "kernel/random/boot_id").decode().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return "unknown"


def exit_name(code: Any) -> str:
    """Name an exit code as Python counts them: negative ones are signals."""
    with contextlib.suppress(ValueError, TypeError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def exists(pid: int) -> bool:
    """Whether there is a process `pid` (on Windows, where asking is not harmless: yes)."""
    with contextlib.suppress(PermissionError):
        try:
            if sys.platform != "win32":
                os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def remove_segments(pids: set[int]) -> None:
    """Unlink shared memory that dead torch processes left behind (`/dev/shm/torch_<pid>_...`)."""
    for path in (path for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")):
        with contextlib.suppress(OSError):
            path.unlink()


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
            alive = plan["system"] != this_system() or exists(plan["kernel_pid"])
            if not alive and try_lock(file.fileno()):
                clear_up(place.parent, stop="kernel gone", code=None)


def end_marked(folder: str | os.PathLike) -> None:
    """SIGKILL every process that was started for the run in `folder`, wherever it went (Linux)."""
    for pid, environment in _processes("environ"):
        if f"{MARK}={folder}".encode() in environment.split(b"\0"):
            _kill(pid)


def clear_up(folder: Path, **how: Any) -> None:
    """End what is left of the run, write its steps and `how` it ended; keep no standby."""
    end_marked(folder)
    if not (folder / FILE_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    deadline, bench = time.monotonic() + 1, logged_pids(folder, "hello")
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
    own = {socket_folder(folder, pid) for pid in logged_pids(folder, "hello")} - {run}
    sockets = (path for place in (run, *own) for name in SOCKETS for path in place.glob(name))
    for path in (*sockets, *run.glob(PAYLOADS), run / RESERVE_NAME, run / PLAN_NAME):
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


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(cache: Path, device: str, run: str, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives.

    One run per device at a time: two at once would measure each other.
    """
    folder = cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub('[^A-Za-z0-9-]', '_', device)}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    deadline, told = time.monotonic() + PATIENCE_S, ""
    while not try_lock(fd):
        other = "another run"
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has only just taken it
            who = json.loads(path.read_text())
            other = f"run {who['run']} (process {who['pid']}, started {who['since']})"
        text = f"device {device} is in use by {other}"
        if time.monotonic() > deadline:
            raise DeviceBusy(f"{text}: stop that run or wait for it to end.")
        if not told:
            waiting(told := text)
        time.sleep(0.05)
    os.ftruncate(fd, 0)
    holder = {"run": run, "pid": os.getpid(), "since": time.strftime("%H:%M:%S")}
    os.pwrite(fd, json.dumps(holder).encode(), 0)
    return fd


def any_held(folder: Path) -> bool:
    """Whether a run of this user, in any kernel, has a device."""
    for path in folder.glob("*.lock"):
        with open(path, "rb+") as file:
            if not try_lock(file.fileno()):
                return True
    return False


def try_lock(fd: int) -> bool:
    """Lock the open file, until it is closed everywhere; return False where another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, 4096, os.SEEK_SET)  # past the text, which others read
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
