"""Folders that several users can reach: who owns one, and who may write in it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def is_ours(folder: str | os.PathLike) -> bool:
    """Whether it is a real folder of this user's, no link, where nobody else may write."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_open = hasattr(os, "getuid") and (found.st_uid != os.getuid() or others_write)
    return stat.S_ISDIR(found.st_mode) and not is_open


def shared_like_its_parent(folder: Path) -> Path:
    """Make `folder` where it is missing; all who may write around it may write in it; return it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return folder
    around = stat.S_IMODE(os.stat(folder.parent).st_mode)
    if around & (stat.S_IWGRP | stat.S_IWOTH):
        with contextlib.suppress(OSError):
            os.chmod(folder, around)
    return folder
