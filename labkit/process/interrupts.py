"""Interrupts (Ctrl-C, a notebook's ■), held back where they would tear something apart."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

PATIENCE_S = 10.0  # after that long without an answer a press interrupts whatever goes on

_pressed: list[float] | None = None  # when, since the outermost block began


def in_notebook() -> bool:
    """Return whether this is a Jupyter kernel, whose front end shows HTML and widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def held() -> Iterator[list[float]]:
    """Collect interrupts in the list given, instead of raising them, within the block.

    Whoever acts on them empties the list; what is left is raised as KeyboardInterrupt at the end.
    In another thread, or under a handler that is not Python's own, they are not for us to hold.
    """
    global _pressed
    mine: list[float] = []
    in_main = threading.current_thread() is threading.main_thread()
    inside = in_main and _pressed is not None  # a block within a block
    ours = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if inside or not ours:
        yield _pressed if inside else mine
        return

    def press(_number: int, _frame: Any) -> None:
        mine.append(time.monotonic())
        if mine[-1] - mine[0] > PATIENCE_S:
            raise KeyboardInterrupt

    _pressed = mine
    signal.signal(signal.SIGINT, press)
    try:
        yield mine
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _pressed = None
    if mine:
        raise KeyboardInterrupt
