"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Blocks of live batches and of kept ones, which cost nothing to load, take turns within one run of
the loop. Both see the same model, machine and moment, so their ratio needs no model of the loader.
The idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from labkit.bench.user_loop import counter_for, find_device, knobs_of
from labkit.process.events import EventLog, now_ns
from labkit.watching.device_clocks import Queue, Waiting
from labkit.watching.kept_batches import Kept, copied
from labkit.watching.passes import Pass, length_of

KEPT = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
BLOCK_NS = 400_000_000  # of measured steps, at least
BLOCK_STEPS = 5
LEAST_PAIRS = 2  # of blocks, for a factor with a range
DRAWS = 1_000  # of the bootstrap
WITHIN = 1.05  # a factor that is no more is none
STARTING, LIVE, FILLING, REPLAY, DRAINING = range(5)  # what a block is of

CANNOT_SHOW = (
    "Replay cannot show what a loader's side effects, a dataset's own state or new samples would "
    "change, and it holds the kept batches in memory. Some steps of this run saw batches again: "
    "train anew for results."
)
SHARED_CORES = (
    "Model and workers share the cores: while batches were replayed the workers filled their queue "
    "and then stood idle, so the replayed steps had the cores to themselves, as with a loader that "
    "costs no CPU time."
)
IN_PLACE = "The loop changes its batches in place: replayed ones are not what the loader gave."


@dataclass(frozen=True)
class Found:
    """What the blocks of a loop say."""

    factor: float | None  # throughput with a perfect loader over the present one; None: too short
    low: float | None  # 95 % interval of `factor`, from the pairs of blocks
    high: float | None
    live: float | None  # samples a second of the loop as it is
    perfect: float | None  # and with a perfect loader
    unit: str
    pairs: int
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        if self.factor is None or self.low is None:
            return (
                "headroom: the loop ended too soon to tell: it takes two pairs of blocks of "
                f"{BLOCK_STEPS} steps and {BLOCK_NS / 1e9:g} s each. Train for longer."
            )
        interval = f"({self.low:.2f}x to {self.high:.2f}x in {self.pairs} pairs of blocks)"
        if self.low <= WITHIN:
            return (
                f"headroom: with a perfect loader your loop would do {self.perfect:,.0f} "
                f"{self.unit}/s, and it does {self.live:,.0f}: {self.factor:.2f}x {interval}. The "
                "loader does not hold it back."
            )
        return (
            f"headroom: with a perfect loader your loop would do {self.perfect:,.0f} "
            f"{self.unit}/s instead of {self.live:,.0f}: at most {self.factor:.1f}x {interval}."
        )


class Blocks:
    """The blocks of live and of replayed steps, and what they took."""

    def __init__(self, in_flight: int):
        """`in_flight` batches are prepared ahead of the loop."""
        self.in_flight = in_flight
        self.kept: deque[Kept] = deque(maxlen=KEPT)
        self.replayed = 0
        self.phase = STARTING
        self.left = in_flight + 1  # batches of a phase that is not measured
        self.until = 0  # ns: when the workers' queue is full
        self.steps = 0
        self.samples = 0
        self.spent = 0  # ns
        self.live_rate = 0.0  # samples a second, in the last block of live steps
        self.pairs: list[tuple[float, float]] = []  # samples a second: live, replayed
        self.changed = False  # a kept batch was, in place
        self.unit = "samples"
        self.has_unit = False  # known from the first batch on
        self.count: Callable[[Any], int] = _one
        self.queue: Queue | Waiting | None = None  # of the GPU that the loop computes on

    def end_step(self, took_ns: int, samples: int, now: int) -> None:
        """Account a step of the present phase, and go on to the next phase where it is time."""
        if self.phase in (LIVE, REPLAY):
            self.steps += 1
            self.samples += samples
            self.spent += took_ns
            if self.queue is not None and self.steps % BLOCK_STEPS == 0:
                self.queue.keep_up()
            if self.steps < BLOCK_STEPS or self.spent < BLOCK_NS:
                return
            if self.queue is not None:
                self.spent = self.queue.end()
            rate = self.samples / self.spent * 1e9
            if self.phase == LIVE:
                self.live_rate = rate
                self.until = now + int(self.in_flight * self.spent / self.steps)
                self._begin(FILLING)
            else:
                self.pairs.append((self.live_rate, rate))
                self.left = self.in_flight
                self._begin(DRAINING if self.in_flight or self.queue is not None else LIVE)
        elif self.phase == FILLING:
            if now >= self.until:
                self._begin(REPLAY)
        else:
            self.left -= 1
            if self.left <= 0:
                self._begin(LIVE)

    def _begin(self, phase: int) -> None:
        self.phase = phase
        self.steps = 0
        self.samples = 0
        self.spent = 0
        if self.queue is not None and phase in (LIVE, REPLAY):
            self.queue.begin()

    @property
    def replays(self) -> bool:
        """Whether the next batch is a kept one."""
        return self.phase in (FILLING, REPLAY)

    def keep(self, batch: Any) -> None:
        """Keep a live batch for the replay."""
        kept = Kept(batch)
        self.kept.append(kept)
        most = max(1, KEPT_BYTES // max(1, kept.bytes))
        while len(self.kept) > most:
            self.kept.popleft()

    def replay(self) -> Any:
        """Return one of the kept batches."""
        kept = self.kept[self.replayed % len(self.kept)]
        self.replayed += 1
        self.changed = self.changed or kept.is_changed()
        return kept.handed_out()

    def write(self, log: EventLog) -> None:
        """Write what is known by now into the log of the loop's run."""
        found = self.found()
        log.write("headroom", **asdict(found), text=found.text)

    def found(self) -> Found:
        """Return what is known by now."""
        notes = [CANNOT_SHOW]
        if self.in_flight and self.queue is None:
            notes.append(SHARED_CORES)
        if self.changed:
            notes.append(IN_PLACE)
        if len(self.pairs) < LEAST_PAIRS:
            return Found(None, None, None, None, None, self.unit, len(self.pairs), tuple(notes))
        ratios = [perfect / live for live, perfect in self.pairs]
        draw = random.Random(0)  # our own
        medians = sorted(
            statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS)
        )
        factor = statistics.median(ratios)
        live = statistics.median(live for live, _ in self.pairs)
        return Found(
            factor=factor,
            low=medians[int(0.025 * DRAWS)],
            high=medians[int(0.975 * DRAWS)],
            live=live,
            perfect=live * factor,
            unit=self.unit,
            pairs=len(self.pairs),
            notes=tuple(notes),
        )


class HeadroomPass:
    """One pass over the batches of an iterator, of which some are replayed.

    Where the iterator is a `Pass`, it records nothing of the replayed steps.
    """

    def __init__(self, blocks: Blocks, iterator: Iterator[Any], loader: Any, may_replay: Callable):
        """`may_replay()` says whether the loop is one that may be given a batch again."""
        self.blocks = blocks
        self.iterator = iterator
        self.batch_size = knobs_of(loader).get("batch_size")
        self.may_replay = may_replay
        self.left: int | None = None  # batches of this pass, where the loader knows
        if hasattr(loader, "__len__"):
            try:
                self.left = len(loader)
            except (TypeError, NotImplementedError):
                self.left = None
        self.asked = 0
        self.samples = 0
        self.is_paused = False
        if blocks.phase != STARTING:  # a new pass: its workers start, its queue is empty
            blocks.left = blocks.in_flight + 1
            blocks._begin(STARTING)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The loader's own class of iterators, which the script may ask for."""
        return self.iterator.__class__

    def __iter__(self) -> HeadroomPass:
        return self

    def __len__(self) -> int:
        return length_of(self.iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "iterator"), name)

    def __next__(self) -> Any:
        now = now_ns()
        blocks = self.blocks
        if self.asked and self.may_replay():
            blocks.end_step(now - self.asked, self.samples, now)
        if self.left is not None:
            if self.left <= 0:
                self._finish()
            self.left -= 1
        batch = self._replayed() if blocks.replays else self._live()
        self.asked = now
        return batch

    def _replayed(self) -> Any:
        if not self.is_paused and isinstance(self.iterator, Pass):
            self.iterator.pause()
        self.is_paused = True
        batch = self.blocks.replay()
        self.samples = self.blocks.count(batch)
        return batch

    def _live(self) -> Any:
        watched = self.iterator if self.is_paused and isinstance(self.iterator, Pass) else None
        if watched is not None and self.blocks.phase == DRAINING:
            batch = watched.skip()
        else:
            if watched is not None:
                watched.resume()
            self.is_paused = False
            batch = next(self.iterator)
        if not self.blocks.has_unit:
            self._learn(batch)
        self.blocks.keep(batch)
        self.samples = self.blocks.count(batch)
        return copied(batch)

    def _learn(self, batch: Any) -> None:
        known = counter_for(batch, self.batch_size)
        self.blocks.unit = "samples" if known else "batches"
        self.blocks.has_unit = True
        self.blocks.count = known or _one
        torch = sys.modules.get("torch")
        device = None if torch is None else find_device(torch)
        if device is not None and device.type != "cpu":
            self.blocks.queue = Queue(device) if device.type == "cuda" else Waiting(device)

    def _finish(self) -> None:
        """End the pass after as many batches as the loader has, of which some were replayed."""
        finish = getattr(self.iterator, "finish", None)
        if finish is not None:
            finish()
        if isinstance(self.iterator, Pass) and self.may_replay():
            self.blocks.write(self.iterator.recorder.log)
        self.left = 0
        raise StopIteration


def _one(_batch: Any) -> int:
    return 1


class Headroom:
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor`, `low` and `high` say how much faster the loop would be with a perfect one.
    """

    def __init__(self, loader: Iterable[Any]):
        self.loader = loader
        self.blocks = Blocks(in_flight_of(loader))

    def __iter__(self) -> HeadroomPass:
        return HeadroomPass(self.blocks, iter(self.loader), self.loader, _always)

    def __len__(self) -> int:
        return length_of(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:  # copying, pickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def found(self) -> Found:
        """What the blocks say by now."""
        return self.blocks.found()

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
        return "\n".join([found.text, *found.notes])


def in_flight_of(loader: Any) -> int:
    """Return how many batches a loader prepares ahead of the loop."""
    knobs = knobs_of(getattr(loader, "loader", loader))  # a Watch has its loader
    return knobs.get("num_workers", 0) * knobs.get("prefetch_factor", 0)


def _always() -> bool:
    return True


def headroom(loader: Iterable[Any]) -> Headroom:
    """Measure what a perfect loader would bring: `for batch in (room := lk.headroom(loader)): ...`.

    Blocks of live batches take turns with blocks of batches that are kept in memory and handed out
    again. A pass has as many batches as before; some of them come more than once, so this run is
    for measuring, not for training. A block takes 0.4 s and 5 steps or more, and two pairs are
    needed: `factor` is None after less.

    Args:
        loader: A DataLoader or another iterable of batches, or `lk.watch(loader)`.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        kind = type(loader).__name__
        raise TypeError(f"lk.headroom({kind}): give it an iterable of batches, like a DataLoader.")
    return Headroom(loader)
