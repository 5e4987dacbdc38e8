"""The folders of a watched script's runs: one for each loop, named by the process that it is in."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SITE = Path(__file__).parent / "site"  # on the PYTHONPATH of what `labkit watch` runs
# Where `labkit watch` wants the runs of this process; None where it does not run it. Read now, as a
# script may empty its environment
of_script: str | None = os.environ.get("LABKIT_WATCHING") or None


def hooked(**more: str) -> dict[str, str]:
    """Return our environment, with more, in which a script's Python finds the hook."""
    paths = filter(None, [str(SITE), os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


def new_folder(pid: int) -> Path | None:
    """Make the folder for the run of another loop of this process.

    None where no `labkit watch` runs it.
    """
    if of_script is None:
        return None
    folder = Path(of_script) / f"{own_rank()}-{pid}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    return folder


def reach_children() -> bool:
    """Whether a Python that this process starts would find what records it, by its environment."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return of_script == os.environ.get("LABKIT_WATCHING") and str(SITE) in paths


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
