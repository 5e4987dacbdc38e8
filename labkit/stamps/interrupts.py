"""Interrupts (Ctrl-C, a notebook's ■), held back where they would tear something apart.

What the handler of any signal raises while code of ours runs in a script goes on to the script.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType

PATIENCE_S = 10.0  # after that long without an answer a press interrupts whatever goes on

_pressed: list[float] | None = None  # when, since the outermost block began


@contextlib.contextmanager
def held() -> Iterator[list[float]]:
    """Collect interrupts in the list given, instead of raising them, within the block.

    Whoever acts on them empties the list; what is left is raised as KeyboardInterrupt at the end.
    In another thread, or under a handler that is not Python's own, they are not for us to hold.
    """
    global _pressed
    mine: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield mine
        return
    if _pressed is not None:  # a block within a block
        yield _pressed
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield mine
        return

    def press(_number: int, _frame: FrameType | None) -> None:
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


def signal_of(error: BaseException) -> signal.Signals | None:
    """Return the signal whose handler has raised an error, so that it is not ours; else None."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for number in signal.valid_signals():
        if getattr(signal.getsignal(number), "__code__", None) in codes:
            return number
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


class OwnErrors:
    """Suppresses errors within the block, but none that the handler of a signal has raised."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        return isinstance(error, Exception) and signal_of(error) is None
