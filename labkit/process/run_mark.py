"""The mark of a run's folder: only a folder that has it is ever deleted. Standard library only."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from labkit.stamps.folder_rights import is_ours, private, text_of

RUN_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
MARK_NAME = "labkit-run"  # a file in a run's folder


def mark_run(folder: Path) -> None:
    """Mark a new run's folder as labkit's."""
    with open(folder / MARK_NAME, "w", encoding="utf-8", opener=private) as file:
        file.write(folder.name)


def is_run(folder: Path) -> bool:
    """Whether labkit made the folder, under this name, for a run of this user's."""
    is_named = RUN_NAME.fullmatch(folder.name) is not None
    return is_named and is_ours(folder) and text_of(folder / MARK_NAME) == folder.name


def delete_run(folder: Path) -> None:
    """Delete a run's folder; one without the mark, or a link, stays."""
    if is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
