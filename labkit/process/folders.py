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
from pathlib import Path

import platformdirs

KEPT_RUNS = 100  # older runs are deleted when a new one starts; save() those you want to keep
RUN_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


def home() -> Path:
    """Return the cache folder: $LABKIT_HOME, else the system's place, else a temporary one."""
    return _writable(os.environ.get("LABKIT_HOME") or platformdirs.user_cache_dir("labkit", False))


@functools.cache
def _writable(wanted: str) -> Path:
    place = Path(wanted).absolute()  # a run's processes work in its folder
    for folder in (place, Path(tempfile.gettempdir()) / f"labkit-{getpass.getuser()}"):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    raise OSError(f"labkit cannot write to {place}: set LABKIT_HOME to a folder it may use.")


def new_run() -> Path:
    """Make and return the folder of a new run; delete the oldest where there are too many."""
    runs = home() / "runs"
    runs.mkdir(exist_ok=True)
    old = sorted(p for p in runs.iterdir() if RUN_NAME.fullmatch(p.name))
    for folder in old[: max(0, len(old) - KEPT_RUNS + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder.mkdir()
    return folder
