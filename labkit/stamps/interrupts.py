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

_pressed: list[float] = []  # when, since the outermost block began


def _press(_number: int, _frame: FrameType | None) -> None:
    _pressed.append(time.monotonic())
    if _pressed[-1] - _pressed[0] > PATIENCE_S:
        raise KeyboardInterrupt


@contextlib.contextmanager
def collect_interrupts() -> Iterator[list[float]]:
    """Collect interrupts in the list given, instead of raising them, within the block.

    Whoever acts on them empties the list; what is left is raised as KeyboardInterrupt at the end.
    In another thread, or under a handler that is not Python's own, they are not for us to hold. A
    block within a block has the outer one's list.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or handler is not signal.default_int_handler:
        yield _pressed if is_main and handler is _press else []
        return
    _pressed.clear()
    signal.signal(signal.SIGINT, _press)
    try:
        yield _pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _pressed:
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
