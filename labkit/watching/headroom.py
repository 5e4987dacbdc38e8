"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Blocks of live batches and of kept ones, which cost nothing to load, take turns within one run of
the loop. Both see the same model, machine and moment, so their ratio needs no model of the loader.
The idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.instruments.batch_contents import arrays_in
from labkit.instruments.loader_knobs import in_flight, knobs_of, length_of
from labkit.stamps.events import now_ns
from labkit.watching.passes import Pass, StandIn, WatchedIterator, check_iterable
from labkit.watching.recorder import device_in_use

KEPT_BATCHES = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
BLOCK_STEPS = 16  # that count in a block
LEAST_PAIRS = 2  # of blocks, for a factor with a range

CANNOT_SHOW = (
    "Replay cannot show what a loader's side effects, a dataset's own state or new samples would "
    "change. Workers stand idle while batches are replayed, so a model on the same cores has them "
    "to itself; batches that the loop changes in place come again as it has left them. Some steps "
    "of this run saw batches again: train anew for results."
)
TOO_SOON = (
    "headroom: the loop ended too soon to tell: it takes two blocks of live batches, and two of "
    f"kept ones, of {BLOCK_STEPS} steps each. Train for longer."
)


class Kept:
    """A few batches of a loader, to be handed out again and again."""

    def __init__(self):
        self.batches: deque[object] = deque()
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another."""
        return len(self.batches) >= KEPT_BATCHES or self.bytes >= KEPT_BYTES

    def keep(self, batch: object) -> None:
        """Keep a batch, where there is room."""
        if not self.is_full:
            self.batches.append(batch)
            self.bytes += sum(array.nbytes for array in arrays_in(batch))

    def again(self) -> object:
        """Return the next of them."""
        self.batches.rotate(-1)
        return shallow_copy(self.batches[-1])


def shallow_copy(batch: Any) -> object:
    """Return a list or dict of tensors as one that a loop may change; all else as it is."""
    return batch.copy() if type(batch) in (list, dict) else batch


def now_on_device() -> int:
    """Return the time once a GPU has done what it was given: the host runs ahead of it."""
    if torch := sys.modules.get("torch"):
        from labkit.instruments import machine

        machine.finish(device_in_use(torch))
    return now_ns()


class Headroom(StandIn):
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor` says how much faster the loop would be with a perfect one, the median of
    pairs of blocks, of which half are within `low` and `high`; None where the loop was too short.
    """

    def __init__(self, loader: Any):
        super().__init__(loader)
        self.factor = self.low = self.high = None
        self.text = TOO_SOON
        self.kept = Kept()
        # Steps at a block's begin that do not count: the workers' queue fills up, or is used up
        self.settling = in_flight(knobs_of(loader)) + 1
        self.step_ns: list[float] = []  # of each block, the mean: of live and of kept ones in turn

    def __iter__(self) -> Iterator[object]:
        live = iter(self.loader)
        recorded = live if isinstance(live, WatchedIterator) else None
        return self.alternate(live, length_of(self.loader), recorded)

    def alternate(
        self, live: Iterator[object], length: int | None, recorded: Pass | None
    ) -> Iterator[object]:
        """Hand out `length` batches of a pass over a loader, of which some come again.

        A pass that is `recorded` has none of the steps with kept batches in it.
        """
        step = began_ns = 0  # of a block
        for _ in itertools.islice(itertools.count(), length):
            is_live = len(self.step_ns) % 2 == 0
            if recorded is not None and step == 0 and not is_live:
                recorded.recorder.drop_pass()  # until it `is_new` again
            if step == self.settling:
                began_ns = now_on_device()
                if recorded is not None and is_live:
                    recorded.is_new = True
            if is_live:
                try:
                    batch = next(live)
                except StopIteration:
                    return
                self.kept.keep(batch)
                yield shallow_copy(batch)
            else:
                yield self.kept.again()
            step += 1
            if step == self.settling + BLOCK_STEPS:
                self.step_ns.append((now_on_device() - began_ns) / BLOCK_STEPS)
                self._compare(recorded)
                step = 0
        if recorded is not None:
            recorded.end("exhausted")

    def _compare(self, recorded: Pass | None) -> None:
        """Compare live and kept blocks; write what they say into the log of a recorded pass."""
        live_ns, kept_ns = self.step_ns[::2], self.step_ns[1::2]
        ratios = [live / kept for live, kept in zip(live_ns, kept_ns, strict=False)]
        if len(ratios) < LEAST_PAIRS:
            return
        self.low, self.factor, self.high = statistics.quantiles(ratios, n=4)
        live = 1e9 / statistics.median(live_ns)
        self.text = (
            f"headroom: with a perfect loader your loop would do {live * self.factor:,.1f} steps/s "
            f"instead of {live:,.1f}: at most {self.factor:.2f}x ({self.low:.2f}x to "
            f"{self.high:.2f}x in half of {len(ratios)} pairs of blocks)."
        )
        if recorded is not None:
            recorded.recorder.log.write(
                "headroom", text=self.text, factor=self.factor, low=self.low, high=self.high
            )

    def __repr__(self) -> str:
        return f"{self.text}\n{CANNOT_SHOW}"


def headroom(loader: Iterable[object]) -> Headroom:
    """Measure what a perfect loader would bring: `for batch in (room := lk.headroom(loader)): ...`.

    Blocks of live batches take turns with blocks of batches that are kept in memory and handed out
    again. A pass has as many batches as before; some of them come more than once, so this run is
    for measuring, not for training. A block takes 16 steps and those that empty or fill the queue
    of the workers, and two pairs are needed: `factor` is None after less.

    Args:
        loader: A DataLoader or another iterable of batches, or `lk.watch(loader)`.
    """
    check_iterable(loader, "lk.headroom")
    return Headroom(loader)
