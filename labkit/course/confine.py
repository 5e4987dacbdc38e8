"""Foreign code in a process of its own: what it may open, start and use up.

Two fences. Landlock (where the kernel has it) takes the rights away from the process. The audit
hook, everywhere, says in Python what was refused, and keeps children from being started. The hook
alone is no sandbox (PEP 578): against somebody who means harm, grade in a container. Standard
library only.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pickle
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from typing import Any

from labkit.course import landlock

REFUSED = "outside the submission"  # in the message of every refusal
LABKIT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
STANDARD = os.path.realpath(sysconfig.get_paths()["stdlib"])
SITE = re.compile(r"[\\/](site|dist)-packages([\\/]|$)")
PROCESS = re.compile(r"/proc/(\d+)(/|$)")

# Libraries, compilers, devices, and what the C library reads; never people's files or /etc itself
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/sys",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
    "/etc/localtime", "/etc/timezone", "/System", "/Library",
)  # fmt: skip
# Never all of /dev: whoever grades may be root, and a disk is a device too
DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/shm",
    "/dev/nvidia*", "/dev/dri", "/dev/kfd",
)  # fmt: skip

# Audit events whose first (or first two) arguments are paths that are changed
CHANGES = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.chmod": 1, "os.chown": 1,
    "os.utime": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2,
}  # fmt: skip
READS = ("os.listdir", "os.scandir", "os.chdir", "sqlite3.connect")
STARTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.spawn", "os.startfile", "pty.spawn", "os.kill", "os.killpg",
)  # fmt: skip
NETWORK = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

MEMORY_BYTES, FILE_BYTES, MORE_THREADS = 4 * 2**30, 64 * 2**20, 256


class Outside(PermissionError):
    """Foreign code asked for something that it may not have."""


def confine(*, read: list[str] = (), write: list[str] = ()) -> None:
    """Give up, for good, all but Python, the system's libraries, `read` and `write` (folders)."""
    sys.dont_write_bytecode = True
    may_read = [*map(os.path.realpath, (*read, *python(), *SYSTEM))]
    devices = [place for pattern in DEVICES for place in glob.glob(pattern)]
    may_write = [*map(os.path.realpath, (*write, *devices))]
    landlock.restrict(may_read, may_write)
    sys.addaudithook(_hook(may_read, may_write))


def unsealed(data: bytes, home: str) -> Any:
    """Unpickle an answer that was handed in, with all but this run's folder out of its reach.

    `home` (labkit's own folder, with its data) may be read. For the bench: what an answer is sent
    as calls this. Anything may be raised, as by any pickle.
    """
    confine(read=[home], write=[os.getcwd(), tempfile.gettempdir()])
    return pickle.loads(data)


def python() -> list[str]:
    """Return where Python, its packages and labkit are."""
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, STANDARD, LABKIT}
    return [*places, *(place for place in sys.path if SITE.search(place))]


def limit(seconds: float) -> None:
    """Limit this process: CPU time, memory (RLIMIT_DATA), file size, and its user's threads."""
    try:
        import resource
    except ImportError:  # Windows has none of these
        return
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(seconds) + 1,
        "RLIMIT_FSIZE": FILE_BYTES,
        # Not RLIMIT_AS: CUDA reserves address space that it never touches
        "RLIMIT_DATA": MEMORY_BYTES,
        "RLIMIT_NPROC": _threads() + MORE_THREADS,  # root is not held back by it
    }
    for name, most in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            number = getattr(resource, name)
            _, hard = resource.getrlimit(number)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (most, most))


def _threads() -> int:
    """Threads of this user."""
    count = 0
    for place in glob.glob("/proc/[0-9]*/task"):
        with contextlib.suppress(OSError):
            if os.stat(place).st_uid == os.getuid():
                count += len(os.listdir(place))
    return count


def _hook(may_read: list[str], may_write: list[str]) -> Callable[[str, tuple], None]:
    readable = [*may_read, *may_write]

    def hook(event: str, given: tuple) -> None:
        if event == "open":
            path, _mode, flags = given
            writing = isinstance(flags, int) and flags & WRITING
            _within(may_write if writing else readable, path, "write" if writing else "read")
        elif event in CHANGES:
            for path in given[: CHANGES[event]]:
                _within(may_write, path, "change")
        elif event in READS:
            _within(readable, given[0] if given else None, "read")
        elif event in STARTS:
            if not _by_a_library():
                raise Outside(f"may not start or signal a process ({event}): {REFUSED}")
        elif event in NETWORK and not _local(given):
            raise Outside(f"may not use the network ({event}): {REFUSED}")

    return hook


def _within(places: list[str], path: Any, verb: str) -> None:
    if path is None:
        path = "."
    if not isinstance(path, (str, bytes, os.PathLike)):
        return  # a file that is open already
    found = os.path.realpath(os.fsdecode(path))
    whose = PROCESS.match(found)
    inside = any(found == place or found.startswith(place + os.sep) for place in places)
    if not inside or (whose and int(whose[1]) != os.getpid()):
        raise Outside(f"may not {verb} {os.fsdecode(path)!r}: {REFUSED}")


def _by_a_library() -> bool:
    """Whether an installed package asks, and not the foreign code, be it through Python's own."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = file == __file__ or file.startswith("<frozen ")
        if not ours and SITE.search(file):
            return not os.path.realpath(file).startswith(LABKIT + os.sep)
        if not ours and not os.path.realpath(file).startswith(STANDARD + os.sep):
            return False
        frame = frame.f_back
    return False


def _local(given: tuple) -> bool:
    """Whether a socket's address is a file's, as between a process and its own workers."""
    address = given[1] if len(given) > 1 else None
    return isinstance(address, (str, bytes)) and hasattr(given[0], "family")
