"""The folders of a watched script's runs: one for each loop, named by the process that it is in."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def new_folder(folder: Path, pid: int) -> Path:
    """Return where, in that of a script, the run of another loop of a process goes.

    Nothing is made.
    """
    return folder / f"{own_rank()}-{pid}-{secrets.token_hex(3)}"


def own_rank() -> str:
    """Return the rank of this process, as its launcher names it; "0" without one."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))


def folders_in(folder: Path) -> list[Path]:
    """Return the folders of all runs of a script."""
    return sorted(each for each in folder.iterdir() if each.is_dir())


def process_of(folder: Path) -> str:
    """Return the rank and the id of a run's process: "0-4711"."""
    return folder.name.rpartition("-")[0]


def rank_of(folder: Path) -> int:
    """Return the rank of a run's process; 0 where it is no number."""
    rank = folder.name.partition("-")[0]
    return int(rank) if rank.isdigit() else 0
