"""The processes of a run, from start to end: who they are, how to end them, what they leave.

A run's plan (`launch.json`) is there from start to end, locked by its supervisor. One without a
lock, whose kernel is gone too, is cleared up after by the next run. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from labkit.process.events import FILE_NAME, RESERVE_NAME, EventLog, recover
from labkit.process.locks import try_lock

# Whether the system tells of its processes in /proc, and has pidfds. Elsewhere psutil is asked
LINUX = sys.platform == "linux" and hasattr(os, "pidfd_open")
# Windows' counterpart of `start_new_session`: a Ctrl-C in the terminal is the kernel's alone
OWN_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
PLAN_NAME = "launch.json"
PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up
PAYLOADS = "*.pkl"  # the reader's own objects, on their way to a bench that ended before
LONGEST_PATH = 103  # bytes of a Unix socket's path on macOS; 107 on Linux
LONGEST_NAME = 20  # bytes of a slash and its name in the folder
SOCKETS = ("listener-*", "pym-*")  # what multiprocessing calls them

MARK = "LABKIT_RUN"  # in the environment of a run's processes: the run's folder
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
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # the same on Windows


def descendants(root: int) -> list[int]:
    """Return the pids of all living processes below `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    for pid, line in _processes("stat"):
        # pid (comm) state ppid ...; comm may hold spaces and brackets
        state, parent = line.rpartition(b")")[2].split()[:2]
        if state != b"Z":
            children.setdefault(int(parent), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def end_all(root: int, seen: set[int]) -> dict[int, int]:
    """SIGKILL all below `root`, and note them in `seen`; return {pid: wait status}."""
    statuses: dict[int, int] = {}

    def alive() -> list[int]:
        statuses.update(reap())
        found = descendants(root)
        seen.update(found)
        return found

    _end(alive)
    return statuses | reap()


def end_marked(folder: str | os.PathLike) -> None:
    """Kill every process that was started for the run in `folder`."""
    _end(lambda: marked(folder))


def _end(alive: Callable[[], list[int]]) -> None:
    """SIGKILL all that are `alive` until none is, cleaners at the deadline only."""
    deadline = time.monotonic() + 1.0
    while (pids := alive()) and time.monotonic() < deadline + 0.5:  # hung in a driver
        is_over = time.monotonic() >= deadline
        for pid in pids:
            if is_over or not any(name in _command(pid) for name in CLEANERS):
                _kill(pid)
        time.sleep(0.003)


def _command(pid: int) -> bytes:
    """Return the command line of a process; b"" where it is gone, or another user's."""
    if LINUX:
        return _read(pid, "cmdline")
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return os.fsencode(" ".join(psutil.Process(pid).cmdline()))
    return b""


def marked(folder: str | os.PathLike) -> list[int]:
    """Return the pids of all that were started for the run in `folder`, wherever they went."""
    if LINUX:
        mark = f"{MARK}={folder}".encode()
        return [pid for pid, found in _processes("environ") if mark in found.split(b"\0")]
    import psutil

    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone
            if process.environ().get(MARK) == str(folder):
                pids.append(process.pid)
    return pids


def reap() -> dict[int, int]:
    """Collect every dead child; return {pid: wait status}."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def logged_pids(folder: str | os.PathLike, name: str) -> set[int]:
    """Return the pids in the events `name` of a run's log, and its ranks': "hello" or "workers"."""
    start = f'{{"event":"{name}"'.encode()
    found = set()
    for place in (Path(folder), *Path(folder).glob("rank*")):
        with contextlib.suppress(OSError, ValueError), open(place / FILE_NAME, "rb") as log:
            for line in log:
                if line.startswith(start) and line.endswith(b"\n"):
                    event = json.loads(line)
                    found.update(event["pids"] if "pids" in event else [event["pid"]])
    return found


def this_system() -> str:
    """Return what tells this boot and process namespace from others: pids count only in one."""
    with contextlib.suppress(OSError):
        boot = _read("sys", "kernel/random/boot_id").decode().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def exit_name(code: Any) -> str:
    """Name an exit code as Python counts them: negative ones are signals."""
    with contextlib.suppress(ValueError, TypeError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def exists(pid: int) -> bool:
    """Whether there is a process `pid`."""
    if not LINUX:  # on Windows to ask as below would end it
        import psutil

        return psutil.pid_exists(pid)
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def remove_segments(pids: set[int]) -> None:
    """Unlink shared memory that dead torch processes left behind (`/dev/shm/torch_<pid>_...`)."""
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
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
    tools = [*run.glob(PAYLOADS), run / RESERVE_NAME]
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


def is_ours(folder: str | os.PathLike) -> bool:
    """Whether it is a real folder of this user's, no link, where nobody else may write."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_open = hasattr(os, "getuid") and (found.st_uid != os.getuid() or others_write)
    return stat.S_ISDIR(found.st_mode) and not is_open


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(cache: Path, device: str, run: str, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives.

    One run per device at a time: two at once would measure each other. A home may be shared by
    several hosts: a GPU's UUID tells them apart, "cpu" does not.
    """
    folder = shared_like_its_parent(cache / "locks")
    host = platform.node()
    name = device if device.startswith(("GPU-", "MIG-")) else f"{device} of {host}"
    path = folder / f"{re.sub('[^A-Za-z0-9-]', '_', name)}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        raise PermissionError(
            f"{path} belongs to another user: set LABKIT_HOME to a folder of your own, or to "
            "one in which all of you may write before the first run."
        ) from None
    with contextlib.suppress(OSError, AttributeError):  # whoever may write beside it may lock it
        os.fchmod(fd, 0o600 | os.stat(folder).st_mode & 0o066)
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while not try_lock(fd):
        other = "another run"
        end = "in its notebook with Stop"
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has only just taken it
            who = json.loads(path.read_text())
            other = f"run {who['run']} (process {who['pid']} on {who['host']}, {who['since']})"
            pid = who["pid"]
            end += f", in a terminal with kill {pid} (on Windows: taskkill /F /PID {pid})"
        text = f"device {device} is in use by {other}"
        if time.monotonic() > deadline:
            raise DeviceBusy(f"{text}: start again when it is over, or end it {end}.")
        if not told:
            waiting(text)
        told = True
        time.sleep(0.05)
    os.ftruncate(fd, 0)
    since = time.strftime("since %H:%M:%S")
    holder = {"run": run, "pid": os.getpid(), "host": host, "since": since}
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, json.dumps(holder).encode())
    return fd


def any_held(folder: Path) -> bool:
    """Whether a run of this user, in any kernel, has a device."""
    return any(is_locked(path) for path in folder.glob("*.lock"))


def is_locked(path: Path) -> bool:
    """Whether a process has the file locked; False where there is none, or no locks.

    Of another user's file, which cannot be opened, it is taken to be so.
    """
    try:
        with open(path, "rb+") as file:
            return not try_lock(file.fileno())
    except PermissionError:
        return True
    except OSError:
        return False


def shared_like_its_parent(folder: Path) -> Path:
    """Make `folder` where it is missing; all who may write around it may write in it; return it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return folder
    around = stat.S_IMODE(os.stat(folder.parent).st_mode)
    if around & (stat.S_IWGRP | stat.S_IWOTH):
        with contextlib.suppress(OSError):
            os.chmod(folder, around)
    return folder
