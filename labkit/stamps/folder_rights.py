"""Whose a folder or a file is: another user's is never used, followed, changed or believed.

A cache folder is one user's alone: where others may write in it, it is refused. Windows tells of no
owners: nothing is checked there. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PLAIN_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO blocks nobody
NOT_PLAIN = (errno.ELOOP, errno.ENXIO)  # what opening a link, or a FIFO, gives then
MOST_BYTES = 2**20  # of a small file: more is nothing that labkit wrote
OTHER_HOME = 'give labkit a folder of your own (export LABKIT_HOME="$HOME/.labkit") and start again'


class NotOurs(PermissionError):
    """A folder or file is not this user's alone; the message names the remedy."""


def is_ours(folder: str | os.PathLike) -> bool:
    """Whether it is a real folder of this user's, no link, where nobody else may write."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        return stat.S_ISDIR(found.st_mode) and _is_owned(found) and not _is_open(found)
    return False


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a plain file of this user's that has no second name, which may be a trap."""
    return stat.S_ISREG(found.st_mode) and _is_owned(found) and found.st_nlink <= 1


def private(path: str, flags: int) -> int:
    """Open a plain file that only its owner may read: an `opener`, as `open` takes it.

    NotOurs, with nothing changed, where something else is there: a link, a FIFO, another user's.
    """
    try:
        fd = os.open(path, flags & ~os.O_TRUNC | PLAIN_ONLY, 0o600)
    except OSError as error:
        if error.errno in NOT_PLAIN:
            raise NotOurs(f"{path} is not a file of your own: remove it.") from None
        raise
    try:
        if not is_own_file(os.fstat(fd)):
            raise NotOurs(f"{path} is not a file of your own: remove it.")
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def text_of(path: Path) -> str:
    """Return what a small file of this user's holds; "" where there is none."""
    try:
        with open(path, encoding="utf-8", opener=private) as file:
            return file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ""


def own_folder(folder: Path) -> Path:
    """Make a folder of labkit's where it is missing, and return it; NotOurs if it is another's."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if not is_ours(folder):
        raise NotOurs(f"{folder} is not a folder of your own: remove it, or {OTHER_HOME}")
    return folder


def own_home(home: Path) -> Path:
    """Make a cache folder where it is missing, and return it; NotOurs where others may write in it.

    What is made is closed to others, whatever the umask.
    """
    for folder in (*reversed(home.parents), home):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    found = home.stat()
    if not _is_owned(found):
        raise NotOurs(f"{home} belongs to another user: {OTHER_HOME}")
    if _is_open(found):
        raise NotOurs(f"others may write in {home}: {OTHER_HOME}")
    return home


def _is_owned(found: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


def _is_open(found: os.stat_result) -> bool:
    return hasattr(os, "getuid") and bool(found.st_mode & OTHERS_WRITE)
