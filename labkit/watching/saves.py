"""When a watched script saves a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref

from labkit.process.events import EventLog, now_ns


def hook_saving(log: EventLog) -> None:
    """Write into `log` from when to when `torch.save` had a file open, unless that goes on.

    `torch.save` stays torch's own function, which others pickle by its name: what is hooked is the
    making of the object that holds the file, and what tells of the end is that it is gone.
    """
    opener = getattr(sys.modules.get("torch.serialization"), "_opener", None)
    if opener is None or hasattr(opener.__init__, "__wrapped__"):
        return
    plain = opener.__init__
    spent_ns = 0  # in all of them

    def write(began_ns: int) -> None:
        nonlocal spent_ns
        with contextlib.suppress(Exception):
            ended_ns = now_ns()
            spent_ns += ended_ns - began_ns
            log.write_some("saved", began=began_ns, ended=ended_ns, spent=spent_ns)

    @functools.wraps(plain)
    def __init__(self: object, file_like: object) -> None:
        plain(self, file_like)
        if type(self).__name__.startswith("_open_zipfile_writer"):
            weakref.finalize(self, write, now_ns()).atexit = False

    opener.__init__ = __init__
