"""The thread in which a widget was made, and how to get back to it.

JupyterLab 4.4 and later hand the page's messages to a subshell of the kernel (ipykernel 7): a
thread with an event loop of its own, which ends when the page is reloaded. A press that arrives
before the subshell is ready is handled in the main thread instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


class HomeThread:
    """Remembers the thread that made it, and the event loop that runs there."""

    def __init__(self):
        self.thread_id = threading.get_ident()
        self.loop: asyncio.AbstractEventLoop | None = None  # None outside a notebook
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            return

    def call(
        self,
        function: Callable[Arguments, object],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Call `function` in this thread: at once from there, else once its loop is free."""
        if self.loop is None or threading.get_ident() == self.thread_id:
            function(*args, **kwargs)
        else:
            self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
