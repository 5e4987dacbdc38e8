"""Whose a folder or a file is: another user's is never used, followed, changed or believed.

A cache folder is one user's alone: where others may write in it, it is refused. Windows tells of no
owners and has no locks of this kind: nothing is checked or locked there. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PLAIN_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO blocks nobody
MOST_BYTES = 2**20  # of a small file: more is nothing that labkit wrote
OTHER_HOME = 'give labkit a folder of your own (export LABKIT_HOME="$HOME/.labkit") and start again'


class NotOurs(PermissionError):
    """A folder or file is not this user's alone; the message names the remedy."""


def is_ours(folder: str | os.PathLike) -> bool:
    """Whether it is a real folder of this user's, no link, where nobody else may write."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        is_open = hasattr(os, "getuid") and found.st_mode & OTHERS_WRITE
        return stat.S_ISDIR(found.st_mode) and is_owned(found) and not is_open
    return False


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a plain file of this user's that has no second name, which may be a trap."""
    return stat.S_ISREG(found.st_mode) and is_owned(found) and found.st_nlink <= 1


def is_owned(found: os.stat_result) -> bool:
    """Whether a file or a folder is this user's."""
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


def own_folder(folder: Path) -> Path:
    """Make a folder where it is missing, and return it; NotOurs where others may write in it.

    What is made is closed to others, whatever the umask.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
    if not is_ours(folder):
        raise NotOurs(f"{folder} is not yours, or others may write in it: {OTHER_HOME}")
    return folder


def private(path: str, flags: int) -> int:
    """Open a plain file that only its owner may read: an `opener`, as `open` takes it.

    OSError, with nothing changed, where something else is there: a link, a FIFO, another user's.
    """
    fd = os.open(path, flags & ~os.O_TRUNC | PLAIN_ONLY, 0o600)
    if not is_own_file(os.fstat(fd)):
        os.close(fd)
        raise NotOurs(f"{path} is not a file of your own: remove it.")
    if flags & os.O_TRUNC:
        os.ftruncate(fd, 0)
    return fd


def text_of(path: Path) -> str:
    """Return what a small file of this user's holds; "" where there is none."""
    try:
        with open(path, encoding="utf-8", opener=private) as file:
            return file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ""


def try_lock(fd: int) -> bool:
    """Lock the open file, until it is closed everywhere; return False where another has it."""
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has the file locked; False where this user has none, or no locks."""
    try:
        with open(path, "rb+", opener=private) as file:
            return not try_lock(file.fileno())
    except OSError:
        return False
