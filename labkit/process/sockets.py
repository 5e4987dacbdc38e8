"""Where a bench's processes keep their sockets, so that a killed run's are found and removed.

Left to itself, multiprocessing makes a folder for them in the system's temporary one, and every
killed process leaves its own behind. Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LONGEST_PATH = 107  # bytes of a Unix socket's path
LONGEST_NAME = 20  # bytes of a slash and its name in the folder
PATTERNS = ("listener-*", "pym-*")  # what multiprocessing puts there


def socket_folder(run: str | os.PathLike, bench_pid: int) -> Path:
    """Return the run's folder, or where its path is too long, a short one of the bench's own."""
    if len(os.fsencode(run)) + LONGEST_NAME <= LONGEST_PATH:
        return Path(run)
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"labkit-{bench_pid}"


def remove_sockets(run: str | os.PathLike, bench_pids: set[int]) -> None:
    """Remove what the dead bench left of them."""
    places = {Path(run), *(socket_folder(run, pid) for pid in bench_pids)}
    for place in places:
        for pattern in PATTERNS:
            for path in place.glob(pattern):
                with contextlib.suppress(OSError):
                    path.unlink()
    for place in places - {Path(run)}:
        with contextlib.suppress(OSError):
            place.rmdir()
