"""One run per device at a time: two at once would measure each other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(folder: Path, device: str, holder: dict, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives."""
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
