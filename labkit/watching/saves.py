"""When a watched script saves a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import sys

from labkit.process.events import EventLog, now_ns


def hook_saving(log: EventLog) -> None:
    """Write into `log` when `torch.save` is called, unless that goes on."""
    torch = sys.modules.get("torch")
    if torch is None or hasattr(torch.save, "_labkit"):
        return
    save = torch.save
    spent_ns = 0  # in all of them

    @functools.wraps(save)
    def timed(*args: object, **more: object) -> object:
        nonlocal spent_ns
        began_ns = now_ns()
        try:
            return save(*args, **more)
        finally:
            with contextlib.suppress(Exception):
                ended_ns = now_ns()
                spent_ns += ended_ns - began_ns
                log.write_some("saved", began=began_ns, ended=ended_ns, spent=spent_ns)

    vars(timed)["_labkit"] = True
    vars(torch)["save"] = timed
