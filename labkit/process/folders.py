"""Where labkit keeps things: one cache folder of the user's, with runs, data and locks in it."""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
import time
from pathlib import Path

import platformdirs

from labkit.process.leftovers import MARK_NAME, PLAN_NAME, delete_run, is_run
from labkit.stamps.folder_rights import NotOurs, is_locked, own_folder, private

# Older runs are deleted when a new one starts; save() those you want to keep
KEPT_RUNS = 100
IN_USE_S = 86_400.0  # somebody may still look at a run that is younger


def home() -> Path:
    """Return the cache folder: $LABKIT_HOME, else the system's place, else a temporary one.

    NotOurs where others may write in it: it is one user's alone.
    """
    return _writable(os.environ.get("LABKIT_HOME") or platformdirs.user_cache_dir("labkit", False))


@functools.cache
def _writable(wanted: str) -> Path:
    try:
        place = Path(wanted).expanduser().resolve()  # a run's processes work in its folder
        with tempfile.TemporaryFile(dir=own_folder(place)):
            return place
    except NotOurs:
        raise
    except (OSError, RuntimeError):  # a user may have no home
        # The processes of this kernel's runs have it, too
        return Path(tempfile.mkdtemp(prefix="labkit-"))


def part(name: str) -> Path:
    """Return a folder in the cache folder, made where it is missing; NotOurs if it is another's."""
    return own_folder(home() / name)


def new_run() -> Path:
    """Make and return the folder of a new run; delete the oldest where there are too many.

    Nothing that may be in use goes: what changed within a day, and what has a supervisor.
    """
    runs = part("runs")
    changed = sorted((run.stat().st_mtime, run) for run in runs.iterdir() if is_run(run))
    for at, run in changed[: max(0, len(changed) - KEPT_RUNS + 1)]:
        if at < time.time() - IN_USE_S and not is_locked(run / PLAN_NAME):
            delete_run(run)
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    with open(folder / MARK_NAME, "w", encoding="utf-8", opener=private) as file:
        file.write(folder.name)
    return folder
