"""The telemetry of a process that no supervisor started."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

TELEMETRY = "telemetry"  # in a run's folder: the file that its telemetry goes on with
ROOT = str(Path(__file__).parents[2])  # where the package `labkit` is


def telemetry_beside(folder: Path) -> Path | None:
    """Sample into the run in `folder` beside this process; None where that cannot be started.

    Returns the file that is deleted to end it. It ends with this process as well, whose child it is
    not: a program waits for its own children only.
    """
    if sys.platform != "linux":  # it could outlive us
        return None
    while_there = folder / TELEMETRY
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    own = [sys.executable, "-m", "labkit.instruments.telemetry", str(os.getpid()), str(while_there)]
    with suppress(OSError):  # numbers without telemetry are still numbers
        while_there.touch()
        # the shell is over at once, and leaves the process to the system
        process = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "LABKIT_WATCHING": ""},
            start_new_session=True,  # no Ctrl-C
        )
        process.wait()
        return while_there
    return None
