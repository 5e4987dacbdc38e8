"""One pass over a loader of which some batches are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labkit.process.events import now_ns
from labkit.watching import headroom_found
from labkit.watching.batches import length_of
from labkit.watching.kept_batches import copied
from labkit.watching.passes import Pass, StandsIn
from labkit.watching.replay_blocks import DRAINING, Blocks


class ReplayedPass(StandsIn):
    """One pass over the batches of an iterator, of which some are replayed.

    Where the iterator is a `Pass`, it records nothing of the replayed steps.
    """

    def __init__(
        self,
        blocks: Blocks,
        iterator: Iterator[object],
        loader: object,
        may_replay: Callable[[], bool],
    ):
        """`may_replay()` says whether the loop is one that may be given a batch again."""
        self.blocks = blocks
        self.iterator = iterator
        self.recorded = iterator if isinstance(iterator, Pass) else None
        self.may_replay = may_replay
        self.left = length_of(loader)  # batches of this pass
        self.asked = 0
        self.samples = 0
        blocks.start()

    def __next__(self) -> object:
        now = now_ns()
        blocks = self.blocks
        if self.asked and self.may_replay():
            blocks.end_step(now - self.asked, self.samples, now)
        if self.left is not None:
            if self.left <= 0:
                self._finish()
            self.left -= 1
        self.asked = now
        if blocks.replays:
            if self.recorded is not None:
                self.recorded.pause()
            batch = blocks.replay()
        else:
            batch = self._live()
            blocks.keep(batch)
        self.samples = blocks.count(batch)
        return copied(batch)

    def _live(self) -> object:
        if self.recorded is not None:
            if self.recorded.is_paused and self.blocks.phase == DRAINING:
                return self.recorded.take_unstamped()
            self.recorded.resume()
        return next(self.iterator)

    def _finish(self) -> None:
        """End the pass after as many batches as the loader has, of which some were replayed."""
        if self.recorded is not None:
            self.recorded.end("exhausted")
            if self.may_replay():
                headroom_found.write(self.blocks, self.recorded.recorder.log)
        self.left = 0
        raise StopIteration
