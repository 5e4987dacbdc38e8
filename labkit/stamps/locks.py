"""Locks on open files, and whole lines from several writers, by what the system has for it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.stamps.folder_rights import private

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PAST_TEXT = 2**31 - 2  # the byte that Windows locks: far beyond the text, which others read
LONGEST_LINE_S = 1.0  # that another writer may take for its line


def try_lock(fd: int) -> bool:
    """Lock the open file, until it is closed everywhere; return False where another has it."""
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _lock_byte(fd, "LK_NBLCK")
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has the file locked; False where this user has none, or no locks."""
    try:
        with open(path, "rb+", opener=private) as file:
            return not try_lock(file.fileno())
    except OSError:
        return False


@contextlib.contextmanager
def one_writer(fd: int) -> Iterator[None]:
    """Keep other writers of a log out for one line.

    POSIX appends whole lines by itself; on Windows O_APPEND is a seek and a write, which another
    process may come between.
    """
    if fcntl is not None:
        yield
        return
    deadline = time.monotonic() + LONGEST_LINE_S
    while not (locked := try_lock(fd)) and time.monotonic() < deadline:
        time.sleep(1e-4)
    try:
        yield
    finally:
        if locked:
            _lock_byte(fd, "LK_UNLCK")


def _lock_byte(fd: int, how: str) -> None:
    import msvcrt

    os.lseek(fd, PAST_TEXT, os.SEEK_SET)
    msvcrt.locking(fd, getattr(msvcrt, how), 1)
