"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Live batches and kept ones, which cost nothing to load, take turns within one run of the loop. The
idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from labkit.watching.alternation import AlternatingPass, Alternation
from labkit.watching.batches import length_of
from labkit.watching.passes import StandIn, WatchedIterator, check_iterable


class Headroom(StandIn):
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor` says how much faster the loop would be with a perfect one, the median of
    pairs of blocks, of which half are within `low` and `high`; None where the loop was too short.
    """

    def __init__(self, loader: Iterable[object]):
        super().__init__(loader)
        self.blocks = Alternation(loader)
        self.factor: float | None = None
        self.low: float | None = None
        self.high: float | None = None

    def __iter__(self) -> Iterator[object]:
        iterator = iter(self.loader)
        recorded = iterator.current if isinstance(iterator, WatchedIterator) else None
        turns = AlternatingPass(self.blocks, length_of(self.loader), recorded, lambda: True)
        try:
            while True:
                instead = turns.take()
                yield turns.given(next(iterator)) if instead is None else next(instead)
        except StopIteration:
            pass
        finally:
            found = self.blocks.found
            self.factor, self.low, self.high = found.factor, found.low, found.high
            if recorded is not None:
                self.blocks.write(recorded.recorder.log)

    def __repr__(self) -> str:
        found = self.blocks.found
        return "\n".join([found.text, *found.notes])


def headroom(loader: Iterable[object]) -> Headroom:
    """Measure what a perfect loader would bring: `for batch in (room := lk.headroom(loader)): ...`.

    Blocks of live batches take turns with blocks of batches that are kept in memory and handed out
    again. A pass has as many batches as before; some of them come more than once, so this run is
    for measuring, not for training. A block takes 0.4 s, and 5 to 50 steps, and two pairs are
    needed: `factor` is None after less.

    Args:
        loader: A DataLoader or another iterable of batches, or `lk.watch(loader)`.
    """
    check_iterable(loader, "lk.headroom")
    return Headroom(loader)
