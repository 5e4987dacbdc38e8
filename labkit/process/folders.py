"""Where labkit keeps things: one cache folder of the user's, with runs, data and locks in it."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import IO

import platformdirs

from labkit.process import folder_rights, leftovers, locks
from labkit.process.events import FILE_NAME, private

# Older runs that nobody uses are deleted when a new one starts; save() those you want to keep
KEPT_RUNS = 100
RUN_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
OWNER_NAME = "owner"  # in a run's folder: the name of the file that its maker holds locked

# What reads or writes a run in this process, and the folder it does so in
in_use: weakref.WeakKeyDictionary[object, Path] = weakref.WeakKeyDictionary()
_locked: list[IO] = []  # open, and so locked, until this process ends


def home() -> Path:
    """Return the cache folder: $LABKIT_HOME, else the system's place, else a temporary one."""
    wanted = os.environ.get("LABKIT_HOME")
    if not wanted:
        wanted = "~"
        with contextlib.suppress(RuntimeError):  # a user who has no home
            wanted = platformdirs.user_cache_dir("labkit", False)
    return _writable(wanted)


@functools.cache
def _writable(wanted: str) -> Path:
    wanted = os.path.expanduser(wanted)
    if not wanted.startswith("~"):  # else there is no home that it could lie in
        place = Path(wanted).absolute()  # a run's processes work in its folder
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
    with contextlib.suppress(OSError):
        return _temporary()
    raise OSError(f"labkit cannot write to {wanted}: set LABKIT_HOME to a folder it may use.")


def _temporary() -> Path:
    """Return a folder of our own where every user may make some: another user's is not used."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in many containers
        user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"labkit-{user}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder if folder_rights.is_ours(folder) else Path(tempfile.mkdtemp(prefix="labkit-"))


def new_run() -> Path:
    """Make and return the folder of a new run; delete the oldest where there are too many."""
    runs = folder_rights.shared_like_its_parent(home() / "runs")
    owner = _own_lock(home() / "owners")
    _delete_oldest(runs, owner)
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    with open(folder / OWNER_NAME, "w", encoding="utf-8", opener=private) as file:
        file.write(owner.name)
    return folder


@functools.cache
def _own_lock(owners: Path) -> Path:
    """Return the path of a file that this process holds locked for as long as it lives."""
    folder_rights.shared_like_its_parent(owners)
    for path in owners.glob("*.lock"):
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > 60  # s: a new one is about to be locked
            if old and not locks.is_locked(path):
                path.unlink()
    own = owners / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
    _locked.append(open(own, "w", opener=private))
    with contextlib.suppress(OSError):  # a file system without locks
        locks.try_lock(_locked[-1].fileno())
    return own


def _delete_oldest(runs: Path, owner: Path) -> None:
    """Delete what is over KEPT_RUNS, the longest unchanged first, but nothing that is in use."""
    folders = sorted((p for p in runs.iterdir() if RUN_NAME.fullmatch(p.name)), key=_changed_at)
    here = {place for used in in_use.values() for place in (used, *used.parents)}
    for folder in folders[: max(0, len(folders) - KEPT_RUNS + 1)]:
        if folder not in here and not _is_used_elsewhere(folder, owner):
            shutil.rmtree(folder, ignore_errors=True)


def _changed_at(run: Path) -> float:
    """Return when a run was last written to, in seconds since 1970."""
    times = [0.0]
    for path in (run, run / FILE_NAME):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _is_used_elsewhere(run: Path, owner: Path) -> bool:
    """Whether another process that made the run lives, or the run's supervisor."""
    name = ""
    with contextlib.suppress(OSError, ValueError):
        name = (run / OWNER_NAME).read_text(encoding="utf-8")
    by_another = bool(name) and name != owner.name
    if by_another and locks.is_locked(owner.parent / Path(name).name):
        return True
    return locks.is_locked(run / leftovers.PLAN_NAME)
