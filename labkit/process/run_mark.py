"""The mark of a run's folder: only a folder that has it is ever deleted. Standard library only."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import IO

from labkit.process.folder_rights import is_ours, private, text_of
from labkit.process.locks import try_lock

RUN_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
MARK_NAME = "labkit-run"  # in a run's folder: a file that its maker holds locked


def mark_run(folder: Path) -> IO[str]:
    """Mark a new run's folder as labkit's; return the mark, which is locked while it is open."""
    file = open(folder / MARK_NAME, "w", encoding="utf-8", opener=private)
    file.write(folder.name)
    file.flush()
    with contextlib.suppress(OSError):  # a file system without locks
        try_lock(file.fileno())
    return file


def is_run(folder: Path) -> bool:
    """Whether labkit made the folder, under this name, for a run of this user's."""
    is_named = RUN_NAME.fullmatch(folder.name) is not None
    return is_named and is_ours(folder) and text_of(folder / MARK_NAME) == folder.name


def delete_run(folder: Path) -> None:
    """Delete a run's folder; one without the mark, or a link, stays."""
    if is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
