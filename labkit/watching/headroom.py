"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Blocks of live batches and of kept ones, which cost nothing to load, take turns within one run of
the loop. Both see the same model, machine and moment, so their ratio needs no model of the loader.
The idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from labkit.instruments.batch_contents import leaves
from labkit.instruments.loader_knobs import in_flight, knobs_of, length_of
from labkit.instruments.stack import is_a
from labkit.stamps.events import EventLog, now_ns
from labkit.watching.device_in_use import device_in_use
from labkit.watching.passes import StandIn, WatchedIterator, check_iterable

if TYPE_CHECKING:
    from labkit.watching.passes import Pass

KEPT_BATCHES = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
BLOCK_STEPS = 16  # that count in a block
LEAST_PAIRS = 2  # of blocks, for a factor with a range
WITHIN = 1.05  # a factor that is no more is none

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


class Alternation:
    """The blocks of a loop's steps, and how many steps a second each came to.

    The first steps of a block do not count: as many as the workers have batches in flight, and for
    as long as these take them. Meanwhile their queue fills up, or is used up.
    """

    def __init__(self, loader: object):
        self.in_flight = in_flight(knobs_of(loader))
        self.kept: list[object] = []
        self.kept_bytes = 0
        self.replayed = 0
        self.live_step_ns = 0.0  # of the last live block
        self.pairs: list[tuple[float, float]] = []  # steps a second: live, kept
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
        if not self.began_ns:
            if self.steps >= 0 and now_ns() >= self.counts_from:
                self.steps = 0
                self.began_ns = now_on_device()
        elif self.steps == BLOCK_STEPS:
            step_ns = (now_on_device() - self.began_ns) / self.steps
            if self.is_live:
                self.live_step_ns = step_ns
            else:
                self.pairs.append((1e9 / self.live_step_ns, 1e9 / step_ns))
            self.begin(live=not self.is_live)

    def keep(self, batch: object) -> None:
        """Keep a live batch, where there is room."""
        if not self.kept or (len(self.kept) < KEPT_BATCHES and self.kept_bytes < KEPT_BYTES):
            self.kept.append(batch)
            parts: list[Any] = [each for each in leaves(batch) if is_a(each, "torch", "Tensor")]
            self.kept_bytes += sum(part.nbytes for part in parts)

    def again(self) -> object:
        """Return one of the kept batches."""
        self.replayed += 1
        return copied(self.kept[self.replayed % len(self.kept)])

    def found(self) -> dict[str, Any]:
        """Return what the blocks say by now, as the event of a log holds it.

        `factor` is the throughput with a perfect loader over the present one, the median of the
        pairs, of which half lie between `low` and `high`; `live` and `perfect` are steps a second.
        """
        pairs = len(self.pairs)
        names = ("factor", "low", "high", "live", "perfect")
        if pairs < LEAST_PAIRS:
            return {"pairs": pairs, "text": TOO_SOON, **dict.fromkeys(names)}
        ratios = [kept / live for live, kept in self.pairs]
        low, factor, high = statistics.quantiles(ratios, n=4)
        live = statistics.median(live for live, _ in self.pairs)
        comment = "" if low > WITHIN else " The loader does not hold it back."
        text = (
            f"headroom: with a perfect loader your loop would do {live * factor:,.1f} steps/s "
            f"instead of {live:,.1f}: at most {factor:.2f}x ({low:.2f}x to {high:.2f}x in half of "
            f"{pairs} pairs of blocks).{comment}"
        )
        values = dict(zip(names, (factor, low, high, live, live * factor), strict=True))
        return {"pairs": pairs, "text": text, **values}

    def write(self, log: EventLog) -> None:
        """Write what the blocks say by now into the log of the loop's run."""
        log.write("headroom", **self.found(), notes=[CANNOT_SHOW])


def now_on_device() -> int:
    """Return the time once a GPU has done what it was given: the host runs ahead of it."""
    if torch := sys.modules.get("torch"):
        device = device_in_use(torch)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
    return now_ns()


def copied(batch: object) -> object:
    """Return a batch with the same tensors in containers of its own, which a loop may empty.

    A container of a user's own class stays the one that is kept.
    """
    if type(batch) is dict:
        return {name: copied(part) for name, part in dict.items(batch)}
    if type(batch) in (list, tuple):
        return cast(type[list], type(batch))(map(copied, cast(list, batch)))
    return batch


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


class Headroom(StandIn):
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor` says how much faster the loop would be with a perfect one, the median of
    pairs of blocks, of which half are within `low` and `high`; None where the loop was too short.
    """

    def __init__(self, loader: Any):
        super().__init__(loader)
        self.blocks = Alternation(loader)

    factor = property(lambda self: self.blocks.found()["factor"])
    low = property(lambda self: self.blocks.found()["low"])
    high = property(lambda self: self.blocks.found()["high"])

    def __iter__(self) -> Iterator[object]:
        iterator = iter(self.loader)
        recorded = iterator if isinstance(iterator, WatchedIterator) else None
        turns = AlternatingPass(self.blocks, length_of(self.loader), recorded, lambda: True)
        try:
            while True:
                instead = turns.take()
                yield turns.given(next(iterator)) if instead is None else next(instead)
        except StopIteration:
            pass
        finally:
            if recorded is not None:
                self.blocks.write(recorded.recorder.log)

    def __repr__(self) -> str:
        return f"{self.blocks.found()['text']}\n{CANNOT_SHOW}"


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
