"""A block of live batches, a block of kept ones, and so on: whose turn it is, and how fast each is.

Both see the same model, machine and moment, so their ratio needs no model of the loader.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from labkit.bench.loader_knobs import in_flight, knobs_of
from labkit.process.events import now_ns
from labkit.watching.device_in_use import device_in_use
from labkit.watching.kept_batches import Kept, copied

if TYPE_CHECKING:
    from labkit.watching.passes import Pass

KEPT_BATCHES = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
# Of live steps that count in a block, as many as take so long; and then as many kept ones
BLOCK_NS = 400_000_000
BLOCK_STEPS = 5  # at least
MOST_STEPS = 50


class Alternation:
    """The blocks of a loop's steps, and how many steps a second each came to.

    The first steps of a block do not count: as many as the workers have batches in flight, and for
    as long as these take them. Meanwhile their queue fills up, or is used up.
    """

    def __init__(self, loader: object):
        self.in_flight = in_flight(knobs_of(loader))
        self.kept: deque[Kept] = deque(maxlen=KEPT_BATCHES)
        self.replayed = 0
        self.live_step_ns = 0  # of the last live block
        self.live_steps = 0  # in it
        self.pairs: list[tuple[float, float]] = []  # steps a second: live, kept
        self.changed = False  # a kept batch was, in place
        self.gpu: object = None  # that the loop computes on, as seen at its first batch
        self.begin(live=True)

    def begin(self, live: bool) -> None:
        """Begin a block."""
        self.is_live = live
        self.left_out = 0  # steps that do not count
        self.counts_from = now_ns() + self.in_flight * self.live_step_ns
        self.began_ns = 0  # once its steps count
        self.steps = 0

    @property
    def counts(self) -> bool:
        """Whether the present step counts."""
        return self.began_ns > 0

    def end_step(self) -> None:
        """Account a step; begin the other kind of block where it is time."""
        now = now_ns()
        if not self.counts:
            self.left_out += 1
            if self.left_out > self.in_flight and now >= self.counts_from:
                self.began_ns = self._now_on_device()
            return
        self.steps += 1
        is_long = self.steps >= BLOCK_STEPS and now - self.began_ns >= BLOCK_NS
        if is_long or self.steps >= (MOST_STEPS if self.is_live else self.live_steps):
            self._end_block()

    def _end_block(self) -> None:
        step_ns = (self._now_on_device() - self.began_ns) // self.steps
        if self.is_live:
            self.live_step_ns = step_ns
            self.live_steps = self.steps
        else:
            self.pairs.append((1e9 / self.live_step_ns, 1e9 / max(step_ns, 1)))
        self.begin(live=not self.is_live)

    def _now_on_device(self) -> int:
        """Return the time once a GPU has done what it was given: the host runs ahead of it."""
        if self.gpu is not None:
            sys.modules["torch"].accelerator.synchronize(self.gpu)
        return now_ns()

    @property
    def shares_cores(self) -> bool:
        """Whether the model computes on the cores that the loader's workers use."""
        return self.in_flight > 0 and self.gpu is None

    def keep(self, batch: object) -> None:
        """Keep a live batch."""
        if not self.kept:
            self.gpu = _gpu_in_use()
        kept = Kept(batch)
        self.kept.append(kept)
        most = max(1, KEPT_BYTES // max(1, kept.bytes))
        while len(self.kept) > most:
            self.kept.popleft()

    def again(self) -> object:
        """Return one of the kept batches."""
        kept = self.kept[self.replayed % len(self.kept)]
        self.replayed += 1
        self.changed = self.changed or kept.is_changed()
        return kept.batch


def _gpu_in_use() -> object:
    """Return the GPU that this process computes on; None on a CPU, or without torch."""
    torch = sys.modules.get("torch")
    device = device_in_use(torch) if torch else None
    return None if device is None or device.type == "cpu" else device


class AlternatingPass:
    """One pass over a loader: it has as many batches as before, of which some come again.

    A pass that is `recorded` has none of the steps with kept batches in it.
    """

    def __init__(
        self,
        blocks: Alternation,
        length: int | None,
        recorded: Pass | None,
        may: Callable[[], bool],
    ):
        """`length` is that of the pass; `may()`: whether its loop may be given a batch again."""
        self.blocks = blocks
        self.recorded = recorded
        self.may_alternate = may
        self.left = length  # batches of this pass; None where that is not known
        self.has_begun = False
        blocks.begin(live=True)

    def take(self) -> Iterator[object] | None:
        """Return what has the next batch, or none at the end; None: it is the loader's turn."""
        blocks = self.blocks
        if self.has_begun and self.may_alternate():
            blocks.end_step()
        self.has_begun = True
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                if self.recorded is not None:
                    self.recorded.end("exhausted")
                return iter(())
        if not blocks.is_live:
            if self.recorded is not None:
                self.recorded.pause()
                self.recorded.handed += 1
            return iter((copied(blocks.again()),))
        if self.recorded is not None and blocks.counts:
            self.recorded.resume()
        return None

    def given(self, batch: object) -> object:
        """Keep a batch of the loader's; return one with the same tensors."""
        self.blocks.keep(batch)
        return copied(batch)
