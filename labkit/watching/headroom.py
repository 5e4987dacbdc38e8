"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Live batches and kept ones, which cost nothing to load, take turns within one run of the loop. The
idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from labkit.watching.alternation import AlternatingPass, Alternation
from labkit.watching.batches import length_of
from labkit.watching.headroom_found import Found, found_in, in_words, write
from labkit.watching.passes import WatchedIterator
from labkit.watching.stand_in import StandIn, check_iterable


class Headroom(StandIn):
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor`, `low` and `high` say how much faster the loop would be with a perfect one.
    """

    def __init__(self, loader: Iterable[object]):
        super().__init__(loader)
        self.blocks = Alternation(loader)

    def __iter__(self) -> Iterator[object]:
        iterator = iter(self.loader)
        recorded = iterator.current if isinstance(iterator, WatchedIterator) else None
        turns = AlternatingPass(self.blocks, length_of(self.loader), recorded, lambda: True)
        while True:
            instead = turns.take()
            try:
                batch = turns.given(next(iterator)) if instead is None else next(instead)
            except StopIteration:
                break
            yield batch
        if recorded is not None:
            write(self.blocks, recorded.recorder.log)

    @property
    def found(self) -> Found:
        """What the blocks say by now."""
        return found_in(self.blocks)

    @property
    def factor(self) -> float | None:
        """Throughput with a perfect loader over the present one; None: the loop was too short."""
        return self.found.factor

    @property
    def low(self) -> float | None:
        """The lower end of the 95 % interval of `factor`."""
        return self.found.low

    @property
    def high(self) -> float | None:
        """The upper end of the 95 % interval of `factor`."""
        return self.found.high

    def __repr__(self) -> str:
        found = self.found
        return "\n".join([in_words(found), *found.notes])


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
