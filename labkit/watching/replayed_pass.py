"""One pass over a loader of which some batches are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from labkit.process.events import now_ns
from labkit.watching import headroom_found
from labkit.watching.kept_batches import copied
from labkit.watching.passes import Pass
from labkit.watching.replay_blocks import DRAINING, Blocks

if TYPE_CHECKING:
    from typing_extensions import Self


class Replay:
    """Whose turn it is in a pass: the loader's, or that of a kept batch.

    A pass that is `recorded` has nothing of the replayed steps in it.
    """

    def __init__(
        self, blocks: Blocks, length: int | None, recorded: Pass | None, may: Callable[[], bool]
    ):
        """`length` is that of the pass; `may()`: whether its loop may be given a batch again."""
        self.blocks = blocks
        self.recorded = recorded
        self.may_replay = may
        self.left = length  # batches of this pass; None where that is not known
        self.asked = 0
        self.samples = 0
        blocks.start()

    def take(self) -> Iterator[object] | None:
        """Return what has the next batch, or none at the end; None: it is the loader's turn."""
        now = now_ns()
        blocks = self.blocks
        if self.asked and self.may_replay():
            blocks.end_step(now - self.asked, self.samples, now)
        if self.left is not None:
            if self.left <= 0:
                self._finish()
                return iter(())
            self.left -= 1
        self.asked = now
        recorded = self.recorded
        if blocks.replays:
            if recorded is not None:
                recorded.pause()
            batch = blocks.replay()
            self.samples = blocks.count(batch)
            return iter((copied(batch),))
        if recorded is not None and blocks.phase != DRAINING:
            recorded.resume()
        return None

    def given(self, batch: object) -> object:
        """Keep a batch of the loader's; return one with the same tensors."""
        self.blocks.keep(batch)
        self.samples = self.blocks.count(batch)
        return copied(batch)

    def _finish(self) -> None:
        """End the pass after as many batches as the loader has, of which some were replayed."""
        self.left = 0
        if self.recorded is not None:
            self.recorded.end("exhausted")
            if self.may_replay():
                headroom_found.write(self.blocks, self.recorded.recorder.log)


class ReplayedPass:
    """An iterator over the batches of another, of which some are replayed."""

    def __init__(self, replay: Replay, iterator: Iterator[object]):
        self.replay = replay
        self.iterator = iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        instead = self.replay.take()
        if instead is not None:
            return next(instead)
        return self.replay.given(next(self.iterator))
