"""One run at a time on a device: the lock that a run holds on it. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

from labkit.stamps.folder_rights import own_folder, private, text_of, try_lock

PATIENCE_S = 20.0  # how long a run waits for another one's device before it gives up


class DeviceBusy(RuntimeError):
    """Another run has the device."""


def hold(cache: Path, device: str, run: str, waiting: Callable[[str], None]) -> int:
    """Take the lock of a GPU's UUID, or "cpu", for as long as any process of the run lives.

    One run of a user's per device at a time: two at once would measure each other. Several hosts
    may have one home.
    """
    name = re.sub("[^A-Za-z0-9-]", "_", f"{device} of {platform.node()}")
    path = own_folder(cache / "locks") / f"{name}.lock"
    fd = private(str(path), os.O_RDWR | os.O_CREAT)  # who has it, and how to end that
    deadline = time.monotonic() + PATIENCE_S
    text = ""
    while not try_lock(fd):
        told, text = text, f"device {device} is in use by {text_of(path) or 'another run'}"
        if time.monotonic() > deadline:
            raise DeviceBusy(f"{text}: start again when it is over, or end it now.")
        if text != told:
            waiting(f"waiting: {text}")
        time.sleep(0.05)
    pid = os.getpid()
    where = f"process {pid} on {platform.node()}, since {time.strftime('%H:%M:%S')}"
    os.ftruncate(fd, 0)
    os.write(fd, f"run {run} ({where}; Stop in its notebook or `kill {pid}` ends it)".encode())
    return fd
