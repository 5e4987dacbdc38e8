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

METHOD = os.environ.get("LABKIT_START_METHOD")
LACKING = {
    os: "fork forkpty pwrite killpg getpgid setsid pidfd_open sched_getaffinity getuid mkfifo",
    signal: "SIGKILL",
}


def take_away_posix():
    """Delete what Windows has not, once the standard library and psutil have taken theirs."""
    import multiprocessing.popen_spawn_posix
    import multiprocessing.resource_tracker  # noqa: F401

    import psutil

    with contextlib.suppress(ImportError):  # IPython's, which uses other means on Windows
        import ptyprocess  # noqa: F401

    kill = signal.SIGKILL
    subprocess.Popen.kill = lambda process: process.send_signal(kill)
    psutil.Process.kill = lambda process: process.send_signal(kill)

    for module, names in LACKING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.modules["fcntl"] = sys.modules["pwd"] = None  # `resource` is asked for by platform
    from labkit.process import family

    family.LINUX = False  # as elsewhere, psutil is asked for processes


if METHOD:
    multiprocessing.set_start_method(METHOD, force=True)
if os.environ.get("LABKIT_WITHOUT_POSIX") == "1":
    take_away_posix()
