"""One run at a time on a device: the lock that a run holds on it. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

from labkit.process import leftovers
from labkit.process.folder_rights import own_folder, private, text_of
from labkit.process.locks import is_locked, try_lock

PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up
LOOK_S = 1.0  # between checks whether that run's supervisor has died meanwhile


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(cache: Path, device: str, run: str, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives.

    One run of a user's per device at a time: two at once would measure each other. Several hosts
    may have one home: a GPU's UUID tells them apart, "cpu" does not.
    """
    path, fd = _opened(cache, device)
    deadline = time.monotonic() + PATIENCE_S
    look_at = time.monotonic() + LOOK_S
    told = False
    while not try_lock(fd):
        other, end = _holder(path)
        text = f"device {device} is in use by {other}"
        if time.monotonic() > deadline:
            raise DeviceBusy(f"{text}: start again when it is over, or end it {end}.")
        if not told:
            waiting(text)
        told = True
        if time.monotonic() > look_at:  # a killed supervisor may outlive the sweep at start
            look_at += LOOK_S
            leftovers.clear(cache / "runs")
        time.sleep(0.05)
    os.ftruncate(fd, 0)
    since = time.strftime("since %H:%M:%S")
    holder = {"run": run, "pid": os.getpid(), "host": platform.node(), "since": since}
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, json.dumps(holder).encode())
    return fd


def _opened(cache: Path, device: str) -> tuple[Path, int]:
    """Open the file whose lock is the device's; return its path and its descriptor."""
    folder = own_folder(cache / "locks")
    name = device if device.startswith(("GPU-", "MIG-")) else f"{device} of {platform.node()}"
    path = folder / f"{re.sub('[^A-Za-z0-9-]', '_', name)}.lock"
    return path, private(str(path), os.O_RDWR | os.O_CREAT)


def _holder(path: Path) -> tuple[str, str]:
    """Say which run has the lock, and how to end it."""
    other = "another run"
    end = "in its notebook with Stop"
    with contextlib.suppress(ValueError, KeyError, TypeError):  # it has only just taken it
        who = json.loads(text_of(path))
        other = f"run {who['run']} (process {who['pid']} on {who['host']}, {who['since']})"
        pid = who["pid"]
        end += f", in a terminal with kill {pid}"
    return other, end


def any_held(folder: Path) -> bool:
    """Whether a run of this user, in any kernel, has a device."""
    return any(is_locked(path) for path in folder.glob("*.lock"))
