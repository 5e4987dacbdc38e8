"""Whose a folder or a file is: another user's is never used, followed, changed or believed.

A cache folder is one user's alone: where others may write in it, or could put another in its place,
it is refused. Windows tells of no owners: nothing is checked there. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import stat
from pathlib import Path

from labkit.process.descriptors import moved_up

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PLAIN_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO blocks nobody
NOT_PLAIN = (errno.ELOOP, errno.ENXIO)  # what opening a link, or a FIFO, gives then
MOST_LINKS = 8  # on the way to a folder
MOST_BYTES = 2**20  # of a small file: more is nothing that labkit wrote


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
    return moved_up(fd)


def text_of(path: Path) -> str:
    """Return what a small file of this user's holds; "" where there is none."""
    try:
        with open(path, encoding="utf-8", opener=private) as file:
            return file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ""


def own_folder(folder: Path) -> Path:
    """Make a folder of labkit's where it is missing, close it to others, and return it.

    NotOurs where another user's is there, or none. Around it nobody else may write.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = os.lstat(folder)
    if not (stat.S_ISDIR(found.st_mode) and _is_owned(found)):
        raise NotOurs(f"{folder} is not a folder of your own: remove it, or {_other_home(folder)}")
    if _is_open(found):  # an older labkit's
        folder.chmod(0o700)
    return folder


def own_home(home: Path) -> Path:
    """Make a cache folder where it is missing, and return it.

    NotOurs where others may write in it, or in a folder above it. A group's rights in a folder that
    is labkit's already are taken away: an older labkit gave them, by the user's umask.
    """
    check_way(home if home.is_symlink() else home.parent)
    for folder in (*reversed(home.parents), home):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    found = home.stat()
    if not _is_owned(found):
        raise NotOurs(f"{home} belongs to another user: {_other_home(home)}")
    if _is_open(found):
        by_group_only = not found.st_mode & stat.S_IWOTH
        if not (by_group_only and (home.name == "labkit" or (home / "runs").is_dir())):
            raise NotOurs(_open_to_others(home, found))
        home.chmod(0o700)
    return home


def check_way(place: Path, links: int = MOST_LINKS) -> None:
    """Raise NotOurs where others could put something in a folder, or in the place of it.

    OSError where more than so many `links` follow each other, as in a circle.
    """
    if links < 0:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(place))
    for each in (*reversed(place.parents), place):
        try:
            found = os.lstat(each)
        except FileNotFoundError:
            return
        if hasattr(os, "getuid") and found.st_uid not in _trusted():
            raise NotOurs(f"{each} belongs to another user: {_other_home(each)}")
        if stat.S_ISLNK(found.st_mode):
            check_way(each.parent / os.readlink(each), links - 1)
        elif _is_open(found) and not (found.st_mode & stat.S_ISVTX or _is_private(found)):
            raise NotOurs(_open_to_others(each, found))


def _is_owned(found: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


def _is_open(found: os.stat_result) -> bool:
    return hasattr(os, "getuid") and bool(found.st_mode & OTHERS_WRITE)


def _trusted() -> set[int]:
    """Return the users whose folders a cache folder may lie in: this one, and the system's.

    The system's is another number in a container that was started without root.
    """
    return {0, os.getuid(), os.stat("/usr").st_uid}


def _is_private(found: os.stat_result) -> bool:
    """Whether only a group may write of which this user is all: Debian gives each user one."""
    return not found.st_mode & stat.S_IWOTH and _is_own_group(found.st_gid)


@functools.cache
def _is_own_group(group: int) -> bool:
    """Whether this user is alone in a group."""
    import grp
    import pwd

    us = (0, os.getuid())
    users = pwd.getpwall()
    with contextlib.suppress(KeyError):
        members = {user.pw_name for user in users if user.pw_gid == group}
        members.update(grp.getgrgid(group).gr_mem)
        return members <= {user.pw_name for user in users if user.pw_uid in us}
    return False


def _open_to_others(place: Path, found: os.stat_result) -> str:
    """Say that others may write in a folder, and how to close it, but not the system's /tmp."""
    is_for_all = found.st_mode & stat.S_ISVTX or not stat.S_ISDIR(found.st_mode)
    may_close = _is_owned(found) and not is_for_all
    close = f"close it (chmod go-w {shlex.quote(str(place))}), or " if may_close else ""
    return f"others may write in {place}: {close}{_other_home(place)}"


def _other_home(place: Path) -> str:
    """Name the line that gives labkit another cache folder than one at, or below, `place`."""
    home = Path.home()
    safe = "$(mktemp -d)" if place in (home, *home.parents) else "$HOME/.labkit"
    return f'give labkit a folder of your own (export LABKIT_HOME="{safe}") and start again'
