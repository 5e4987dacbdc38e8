"""A block of live batches, a block of kept ones, and so on: whose turn it is, and how fast each is.

Both see the same model, machine and moment, so their ratio needs no model of the loader.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from labkit.instruments.batch_contents import leaves
from labkit.instruments.loader_knobs import in_flight, knobs_of
from labkit.instruments.stack import is_a
from labkit.stamps.events import EventLog, now_ns
from labkit.watching.trained import device_in_use

if TYPE_CHECKING:
    from labkit.watching.passes import Pass

KEPT_BATCHES = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
BLOCK_NS = 400_000_000  # that a block takes, or more for as many steps
BLOCK_STEPS = 5  # at least
MOST_STEPS = 50
LEAST_PAIRS = 2  # of blocks, for a factor with a range
WITHIN = 1.05  # a factor that is no more is none

CANNOT_SHOW = (
    "Replay cannot show what a loader's side effects, a dataset's own state or new samples would "
    "change. Workers stand idle while batches are replayed, so a model on the same cores has them "
    "to itself; batches that the loop changes in place come again as it has left them. Some steps "
    "of this run saw batches again: train anew for results."
)


@dataclass(frozen=True)
class Found:
    """What the blocks of a loop say."""

    pairs: int
    factor: float | None = None  # throughput with a perfect loader over the present one: the median
    low: float | None = None  # the middle half of the pairs lies between these
    high: float | None = None
    live: float | None = None  # steps a second of the loop as it is
    perfect: float | None = None  # and with a perfect loader
    notes: tuple[str, ...] = (CANNOT_SHOW,)

    @property
    def text(self) -> str:
        """What was found, in a sentence."""
        if self.factor is None or self.low is None:
            return (
                "headroom: the loop ended too soon to tell: it takes two blocks of live batches, "
                f"and two of kept ones, of {BLOCK_STEPS} to {MOST_STEPS} steps each. Train for "
                "longer."
            )
        comment = "" if self.low > WITHIN else " The loader does not hold it back."
        spread = f"({self.low:.2f}x to {self.high:.2f}x in half of {self.pairs} pairs of blocks)"
        return (
            f"headroom: with a perfect loader your loop would do {self.perfect:,.1f} steps/s "
            f"instead of {self.live:,.1f}: at most {self.factor:.2f}x {spread}.{comment}"
        )


class Alternation:
    """The blocks of a loop's steps, and how many steps a second each came to.

    The first steps of a block do not count: as many as the workers have batches in flight, and for
    as long as these take them. Meanwhile their queue fills up, or is used up.
    """

    def __init__(self, loader: object):
        self.in_flight = in_flight(knobs_of(loader))
        self.kept: deque[object] = deque(maxlen=KEPT_BATCHES)
        self.replayed = 0
        self.live_step_ns = 0.0  # of the last live block
        self.pairs: list[tuple[float, float]] = []  # steps a second: live, kept
        self.gpu: object = None  # that the loop computes on, as seen at its first batch
        self.begin(live=True)

    def begin(self, live: bool) -> None:
        """Begin a block."""
        self.is_live = live
        self.steps = -self.in_flight - 1  # below 0 they do not count
        self.counts_from = now_ns() + self.in_flight * self.live_step_ns
        self.began_ns = 0  # once its steps count

    def end_step(self) -> None:
        """Account a step; begin the other kind of block where it is time."""
        self.steps += 1
        now = now_ns()
        if not self.began_ns:
            if self.steps >= 0 and now >= self.counts_from:
                self.steps = 0
                self.began_ns = self._now_on_device()
        elif self.steps >= MOST_STEPS or (
            self.steps >= BLOCK_STEPS and now - self.began_ns >= BLOCK_NS
        ):
            step_ns = (self._now_on_device() - self.began_ns) / self.steps
            if self.is_live:
                self.live_step_ns = step_ns
            else:
                self.pairs.append((1e9 / self.live_step_ns, 1e9 / step_ns))
            self.begin(live=not self.is_live)

    def _now_on_device(self) -> int:
        """Return the time once a GPU has done what it was given: the host runs ahead of it."""
        if self.gpu is not None:
            sys.modules["torch"].accelerator.synchronize(self.gpu)
        return now_ns()

    def keep(self, batch: object) -> None:
        """Keep a live batch."""
        if not self.kept:
            self.gpu = _gpu_in_use()
        self.kept.append(batch)
        parts: list[Any] = [each for each in leaves(batch) if is_a(each, "torch", "Tensor")]
        most = max(1, KEPT_BYTES // max(1, sum(part.nbytes for part in parts)))
        while len(self.kept) > most:
            self.kept.popleft()

    def again(self) -> object:
        """Return one of the kept batches."""
        self.replayed += 1
        return copied(self.kept[self.replayed % len(self.kept)])

    @property
    def found(self) -> Found:
        """What the blocks say by now."""
        pairs = len(self.pairs)
        if pairs < LEAST_PAIRS:
            return Found(pairs)
        ratios = [kept / live for live, kept in self.pairs]
        low, factor, high = statistics.quantiles(ratios, n=4)
        live = statistics.median(live for live, _ in self.pairs)
        return Found(pairs, factor, low, high, live, live * factor)

    def write(self, log: EventLog) -> None:
        """Write what the blocks say by now into the log of the loop's run."""
        log.write("headroom", **asdict(self.found), text=self.found.text)


def copied(batch: object) -> object:
    """Return a batch with the same tensors in containers of its own, which a loop may empty.

    A container of a user's own class stays the one that is kept.
    """
    if type(batch) is dict:
        return {name: copied(part) for name, part in dict.items(batch)}
    if type(batch) in (list, tuple):
        return cast(type[list], type(batch))(map(copied, cast(list, batch)))
    return batch


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
            return iter((blocks.again(),))
        if self.recorded is not None and blocks.began_ns:
            self.recorded.resume()
        return None

    def given(self, batch: object) -> object:
        """Keep a batch of the loader's; return one with the same tensors."""
        self.blocks.keep(batch)
        return copied(batch)
