"""What a panel's Run and Stop do: one thing at a time, in a task, so that the kernel stays free."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from labkit.results.event_log import EventLogResult
from labkit.results.waiting import POLL_S

SETTLE_S = 0.1  # s, for a control's last change to arrive: a press may overtake it

Followed = TypeVar("Followed", bound=EventLogResult)


class Session:
    """Does what a button asks in a task of the kernel's event loop, until it ends or `stop`."""

    def __init__(self, show_busy: Callable[[bool], None], say_failed: Callable[[str], None]):
        """`show_busy` hears of begin and end, `say_failed` why it ended early."""
        self.show_busy = show_busy
        self.say_failed = say_failed
        self.task: asyncio.Task[None] | None = None  # held, or it might be collected
        self._stop = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether something is going on."""
        return self.task is not None and not self.task.done()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin `work`; raises RuntimeError where there is no event loop, outside a notebook."""
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.show_busy(True)
        self.task = loop.create_task(self._guarded(work))

    def stop(self) -> None:
        """Ask it to stop."""
        self._stop.set()

    async def pause(self, seconds: float) -> None:
        """Let the kernel do other things for so long, or until it is asked to stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def follow(self, run: Followed, draw: Callable[[Followed], object]) -> None:
        """Draw `run` until it ends or is to stop; no process of it is left afterwards."""
        try:
            while run.running and not self.stopping:
                draw(run)
                await self.pause(POLL_S)
        except BaseException:
            self.stop()
            raise
        finally:
            await asyncio.to_thread(self._end, run)

    def _end(self, run: EventLogResult) -> None:
        """Stop a run that is to stop, else wait for its last process."""
        if self.stopping:
            run.stop()
        else:
            run.wait()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, and say what went wrong: in a task nobody would see it."""
        try:
            await self.pause(SETTLE_S)
            await work()
        except Exception as error:
            is_plain = isinstance(error, (ValueError, OSError, RuntimeError))
            self.say_failed(str(error) if is_plain else f"{type(error).__name__}: {error}")
        finally:
            self.show_busy(False)
