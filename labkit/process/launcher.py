"""Starting runs apart from the kernel, warm where a standby fits, else cold.

**Standby.** A cold start takes over a second, nearly all of it importing torch. So when a run has
ended, an interactive kernel starts the processes of the next one, which import torch, touch no
device and wait ten minutes. `LABKIT_WARM=0` switches this off, `LABKIT_WARM=1` on, also in scripts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from labkit.process import device_lock, folders, leftovers
from labkit.process.handle import JOIN_S, Handle, runs

BENCH = "labkit.bench"
RANKS = "labkit.bench.ranks"
IDLE_S = 600.0  # how long a standby waits for a run

_standby: Handle | None = None
_choosing = threading.Lock()  # held while a run or a standby is being started


@contextlib.contextmanager
def starting(module: str, after: list[str] | None) -> Iterator[Handle]:
    """Give a handle to begin a run with: the standby where it fits, else one that is cold."""
    with _choosing:
        runs[:] = [handle for handle in runs if handle.alive()]
        leftovers.clear(folders.home() / "runs")
        standby = _taken()
        if standby and module == BENCH and after is None and standby.fits():
            handle = standby
        else:
            if standby:
                standby.discard()  # its import would disturb the run that starts now
            handle = Handle(module, after, stand_by)
        try:
            yield handle
        except BaseException:
            handle.discard()
            raise


def stand_by(idle_s: float = IDLE_S, forced: bool = False) -> None:
    """Start the processes of the next run, where it is `wanted` and nothing is being measured."""
    global _standby
    if not wanted(forced) or not _choosing.acquire(blocking=False):
        return
    with contextlib.ExitStack() as undo, contextlib.suppress(OSError):  # the next run will tell
        undo.callback(_choosing.release)
        going = any(handle.process.poll() is None for handle in runs)
        if not (going or _standby or device_lock.any_held(folders.home() / "locks")):
            standby = Handle(BENCH, None, stand_by)
            undo.callback(lambda: standby is _standby or standby.discard())
            standby.start(idle_s)
            _standby = standby


def end_standby() -> None:
    """End the standby, if there is one: what is measured in the kernel wants to be alone."""
    with _choosing:
        standby = _taken()
        if standby is not None:
            standby.discard()
            standby.process.wait(JOIN_S)


def _taken() -> Handle | None:
    """Return the standby, which from now on is none."""
    global _standby
    standby = _standby
    _standby = None
    return standby


def wanted(forced: bool = False) -> bool:
    """Whether this process may have another run soon: a notebook's kernel, a Python prompt."""
    said = os.environ.get("LABKIT_WARM", "")
    return said != "0" and (forced or said == "1" or hasattr(sys, "ps1"))
