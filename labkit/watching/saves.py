"""When a watched script saves a checkpoint."""

from __future__ import annotations

import contextlib
import sys
import weakref

from labkit.instruments.before_calls import Before
from labkit.stamps.events import EventLog, now_ns


def hook_saving(log: EventLog) -> None:
    """Write into `log` from when to when `torch.save` had a file open, unless that goes on.

    `torch.save` stays torch's own function, which others pickle by its name: what is hooked is that
    the object which holds the file is entered, and what tells of the end is that it is gone.
    """
    opener = getattr(sys.modules.get("torch.serialization"), "_opener", None)
    if opener is None or type(vars(opener)["__enter__"]) is Before:
        return

    def write(began_ns: int) -> None:
        with contextlib.suppress(Exception):
            log.write("saved", began=began_ns, ended=now_ns())

    def begin(entered: object) -> None:
        if type(entered).__name__.startswith("_open_zipfile_writer"):
            weakref.finalize(entered, write, now_ns()).atexit = False

    opener.__enter__ = Before(begin, opener.__enter__)
