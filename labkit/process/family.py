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
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from labkit.process.events import FILE_NAME, RESERVE_NAME, EventLog, recover

# Only Linux has them; it tells of its processes in /proc. Elsewhere psutil is asked
LINUX = hasattr(os, "pidfd_open")
PLAN_NAME = "launch.json"
PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up
PAYLOADS = "*.pkl"  # the reader's own objects, on their way to a bench that ended before

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


def end_all(folder: str | os.PathLike, root: int | None = None) -> set[int]:
    """SIGKILL all that belongs to the run in `folder`, cleaners at the deadline; return who it was.

    `root` is their ancestor, where it lives: on Linux its descendants are the run.
    """
    deadline = time.monotonic() + 1.0
    seen: set[int] = set()
    while time.monotonic() < deadline + 0.5:  # longer where one hangs in a driver
        alive = descendants(root) if LINUX and root else marked(folder)
        if not alive:
            break
        seen.update(alive)
        for pid in alive:
            cleans = any(name in _command(pid) for name in CLEANERS)
            if not cleans or time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.003)
    return seen


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


def logged_pids(folder: str | os.PathLike, name: str) -> set[int]:
    """Return the pids in the events `name` of a run's log, and its ranks': "hello" or "workers"."""
    start = f'{{"event":"{name}"'.encode()
    found: set[int] = set()
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


def exit_name(code: int | None) -> str:
    """Name an exit code as Python counts them: negative ones are signals; a record's may be any."""
    with contextlib.suppress(ValueError, TypeError):
        return signal.Signals(-(code or 0)).name
    return f"exit code {code}"


def exists(pid: int) -> bool:
    """Whether there is a process `pid`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
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
        with contextlib.suppress(OSError, ValueError, KeyError), open(place) as file:
            plan = json.load(file)
            alive = plan["system"] != this_system() or exists(plan["kernel_pid"])
            if not alive and try_lock(file.fileno()):
                clear_up(place.parent, stop="kernel gone", code=None)


def clear_up(folder: Path, **how: object) -> None:
    """End what is left of the run, write its steps and `how` it ended; keep no standby."""
    end_all(folder)
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
    sockets = socket_folder(run)
    if is_ours(sockets):
        shutil.rmtree(sockets, ignore_errors=True)
    for path in (*run.glob(PAYLOADS), run / RESERVE_NAME, run / PLAN_NAME):
        with contextlib.suppress(OSError):
            path.unlink()


def socket_folder(run: Path) -> Path:
    """Return where a bench keeps its processes' sockets: else a killed one's would stay behind.

    A socket's path is short: 103 bytes on macOS, 107 on Linux.
    """
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"labkit-{run.name}"


def is_ours(folder: str | os.PathLike) -> bool:
    """Whether it is a real folder of this user's, no link, where nobody else may write."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write


def try_lock(fd: int) -> bool:
    """Lock the open file, until it is closed everywhere; return False where another has it."""
    import fcntl  # not on Windows, where nothing is run, and traces can be read

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


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
    with contextlib.suppress(OSError):  # whoever may write beside it may lock it
        os.fchmod(fd, 0o600 | os.stat(folder).st_mode & 0o066)
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while not try_lock(fd):
        other = "another run"
        end = "in its notebook with Stop"
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has only just taken it
            who = json.loads(path.read_text())
            other = f"run {who['run']} (process {who['pid']} on {who['host']}, {who['since']})"
            end += f", in a terminal with kill {who['pid']}"
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
