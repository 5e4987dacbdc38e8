"""One run at a time on a device: the lock that a run holds on it. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

from labkit.stamps.folder_rights import is_locked, own_folder, private, text_of, try_lock

PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up
LONGEST_HOLDER = 300  # characters that are read of who has a device


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(cache: Path, device: str, run: str, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives.

    One run of a user's per device at a time: two at once would measure each other. Several hosts
    may have one home: a GPU's UUID tells them apart, "cpu" does not.
    """
    name = device if device.startswith(("GPU-", "MIG-")) else f"{device} of {platform.node()}"
    path = own_folder(cache / "locks") / f"{re.sub('[^A-Za-z0-9-]', '_', name)}.lock"
    fd = private(str(path), os.O_RDWR | os.O_CREAT)  # who has it, and how to end that
    deadline = time.monotonic() + PATIENCE_S
    told = ""
    while not try_lock(fd):
        who, _, kill = text_of(path)[:LONGEST_HOLDER].partition("\n")
        text = f"device {device} is in use by {who or 'another run'}"
        if time.monotonic() > deadline:
            how = f"in its notebook with Stop, in a terminal with {kill or 'kill'}"
            raise DeviceBusy(f"{text}: start again when it is over, or end it {how}.")
        if text != told:
            waiting(text)
        told = text
        time.sleep(0.05)
    pid = os.getpid()
    since = time.strftime("since %H:%M:%S")
    os.ftruncate(fd, 0)
    os.write(fd, f"run {run} (process {pid} on {platform.node()}, {since})\nkill {pid}".encode())
    return fd


def any_held(folder: Path) -> bool:
    """Whether a run of this user, in any kernel, has a device."""
    return any(is_locked(path) for path in folder.glob("*.lock"))
