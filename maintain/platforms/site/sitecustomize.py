"""Makes this Python more like another system's, as `check.py` asks through the environment.

LABKIT_START_METHOD: multiprocessing's. LABKIT_WITHOUT_POSIX=1: without the names that Windows lacks
(those that multiprocessing and torch use on this system stay, and /proc does).
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import types

METHOD = os.environ.get("LABKIT_START_METHOD")
LACKING = {
    os: "fork forkpty pwrite killpg getpgid setsid pidfd_open sched_getaffinity getuid "
    "set_blocking mkfifo",
    signal: "SIGKILL",
}


def take_away_posix():
    """Delete what Windows has not, once the standard library and psutil have taken theirs."""
    import fcntl
    import multiprocessing.popen_spawn_posix
    import multiprocessing.resource_tracker  # noqa: F401

    import psutil

    with contextlib.suppress(ImportError):  # IPython's, which uses other means on Windows
        import ptyprocess  # noqa: F401

    kill = signal.SIGKILL
    subprocess.Popen.kill = lambda process: process.send_signal(kill)
    psutil.Process.kill = lambda process: process.send_signal(kill)

    def locking(fd, how, _bytes):
        if how == msvcrt.LK_UNLCK:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(*error.args) from None

    msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.LK_UNLCK, msvcrt.locking = 2, 0, locking
    sys.modules["msvcrt"] = msvcrt
    for module, names in LACKING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = None


def append_in_two_calls():
    """Let os.write go to the end of a file and then write, as Windows does with O_APPEND."""
    really_open, really_write, really_close = os.open, os.write, os.close
    appended = set()

    def opened(path, flags, *more, **named):
        fd = really_open(path, flags & ~os.O_APPEND, *more, **named)
        if flags & os.O_APPEND:
            appended.add(fd)
        return fd

    def written(fd, data):
        if fd in appended:
            os.lseek(fd, 0, os.SEEK_END)
        return really_write(fd, data)

    def closed(fd):
        appended.discard(fd)
        really_close(fd)

    os.open, os.write, os.close = opened, written, closed


if METHOD:
    multiprocessing.set_start_method(METHOD, force=True)
if os.environ.get("LABKIT_WITHOUT_POSIX") == "1":
    take_away_posix()
    append_in_two_calls()
