"""The processes of a run: who they are, and how to end them. Standard library only on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

LINUX = sys.platform == "linux"  # which tells of processes in /proc; elsewhere psutil is asked
PR_SET_PDEATHSIG = 1  # Linux, prctl(2)
PR_SET_CHILD_SUBREAPER = 36
MARK = "LABKIT_RUN"  # in the environment of a run's processes: the run's folder
# They clean up after the others and leave by themselves when the last one is gone (Linux)
CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
CLEANERS_S = 3.0  # to do so in: torch's waits 2 s for another process before it removes its socket
OTHERS_S = 1.0  # for all others to be gone in, which are killed at once
HANGING_S = 0.5  # after that time: what is still there hangs in a driver, and nobody can end it


def _read(pid: int | str, what: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()
    return b""


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below `root`.

    Zombies too: one whose threads are still ending keeps its children.
    """
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        children.setdefault(_state_and_parent(pid)[1], []).append(int(pid))
    found: list[int] = []
    parents = [root]
    while parents:
        parents = [pid for parent in parents for pid in children.get(parent, [])]
        found += parents
    return found


def _state_and_parent(pid: int | str) -> tuple[bytes, int]:
    # pid (comm) state ppid ...; comm may hold spaces and brackets
    state, parent = (_read(pid, "stat").rpartition(b")")[2].split() or [b"Z", b"0"])[:2]
    return state, int(parent)


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


def end_marked(folder: str | os.PathLike, sessions: Collection[int]) -> None:
    """Kill every process that was started for the run in `folder`.

    It has the run's mark, or is left over in one of its `sessions`, whose first process is gone.
    """
    import psutil

    def started() -> list[int]:
        found = psutil.process_iter(["cmdline", "environ"])
        living = {each.pid: each.info for each in found if each.info["cmdline"]}  # none: it ends
        left_over = set(sessions) - living.keys()
        return [
            pid
            for pid, each in living.items()
            if (each["environ"] or {}).get(MARK) == str(folder) or _session_of(pid) in left_over
        ]

    _end(started)


def _session_of(pid: int) -> int:
    """Return the session of a process; 0 of one that is gone, and on Windows."""
    with contextlib.suppress(OSError, AttributeError):
        return os.getsid(pid)
    return 0


def _end(alive: Callable[[], list[int]]) -> None:
    """SIGKILL all that are `alive`, again and again, until none is, or the rest hangs in a driver.

    Cleaners are killed too, where they have not left in their time.
    """
    began_s = time.monotonic()
    while pids := set(alive()):
        cleaners = {pid for pid in pids if any(name in _read(pid, "cmdline") for name in CLEANERS)}
        seconds = time.monotonic() - began_s
        if seconds > HANGING_S + (CLEANERS_S if cleaners else OTHERS_S):
            return
        for pid in pids if seconds > CLEANERS_S else pids - cleaners:
            with contextlib.suppress(OSError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # the same on Windows
        time.sleep(0.003)


def reap() -> dict[int, int]:
    """Collect every dead child on Linux; return {pid: wait status}."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while LINUX and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


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
    """Whether there is a process `pid`, and on Linux one that is no zombie."""
    if LINUX:
        return _state_and_parent(pid)[0] != b"Z"
    import psutil

    return psutil.pid_exists(pid)


def die_with(parent: int) -> None:
    """Have Linux SIGKILL this process when `parent` dies; elsewhere the supervisor does."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


# Of a supervisor and the process above it, each ends the run if the other is killed. Linux gives
# the children of a process that dies to the nearest "subreaper" above it, whatever their session,
# environment or open files. So whatever a run has started is found below the one that is left.


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies, double forks included."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def go_on_guarded() -> None:
    """Return in a child of this process only; this one waits for it, and ends as it does.

    The child has a SIGHUP when this one is killed.
    """
    adopt_orphans()
    guard = os.getpid()
    supervisor = os.fork()
    if supervisor:
        _wait_for(supervisor)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != guard:
        os._exit(1)


def _wait_for(supervisor: int) -> None:
    """Pass on a request to stop; if the supervisor is killed, end what it leaves. Never returns."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(supervisor, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if code:  # else what it has started since the run's end may stay
        end_all(os.getpid(), set())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL takes no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
