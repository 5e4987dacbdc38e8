"""`lk.headroom(loader)`: how fast your own loop would be with a perfect loader, by replay.

Blocks of live batches and of kept ones, which cost nothing to load, take turns within one run of
the loop. Both see the same model, machine and moment, so their ratio needs no model of the loader.
The idea is that of SPDL's CacheDataLoader and DALI's LoaderEvaluator.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass
from typing import cast

from labkit.bench.batch_contents import counter_for
from labkit.bench.loader_knobs import in_flight, knobs_of
from labkit.process.events import EventLog, now_ns
from labkit.watching.batches import length_of, one_a_batch
from labkit.watching.block_timers import Queue, Waiting
from labkit.watching.device_in_use import device_in_use
from labkit.watching.kept_batches import Kept, copied
from labkit.watching.log_words import Unit
from labkit.watching.passes import Pass, StandsIn

KEPT_BATCHES = 8  # batches, at most
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

    unit: Unit
    pairs: int
    notes: tuple[str, ...]
    factor: float | None = None  # throughput with a perfect loader over the present one
    low: float | None = None  # 95 % interval of `factor`, from the pairs of blocks
    high: float | None = None
    live: float | None = None  # samples a second of the loop as it is
    perfect: float | None = None  # and with a perfect loader


def in_words(found: Found) -> str:
    """Say in a sentence what was found."""
    if found.factor is None or found.low is None:
        return (
            "headroom: the loop ended too soon to tell: it takes two pairs of blocks of "
            f"{BLOCK_STEPS} steps and {BLOCK_NS / 1e9:g} s each. Train for longer."
        )
    interval = f"({found.low:.2f}x to {found.high:.2f}x in {found.pairs} pairs of blocks)"
    would_do = f"headroom: with a perfect loader your loop would do {found.perfect:,.0f}"
    if found.low <= WITHIN:
        return (
            f"{would_do} {found.unit}/s, and it does {found.live:,.0f}: {found.factor:.2f}x "
            f"{interval}. The loader does not hold it back."
        )
    return (
        f"{would_do} {found.unit}/s instead of {found.live:,.0f}: at most {found.factor:.1f}x "
        f"{interval}."
    )


class Blocks:
    """The blocks of live and of replayed steps, and what they took."""

    def __init__(self, loader: object):
        knobs = knobs_of(getattr(loader, "loader", loader))  # a Watch has its loader
        self.batch_size = knobs.get("batch_size")
        self.in_flight = in_flight(knobs)
        self.kept: deque[Kept] = deque(maxlen=KEPT_BATCHES)
        self.replayed = 0
        self.steps = 0
        self.samples = 0
        self.spent = 0  # ns
        self.until = 0  # ns: when the workers' queue is full
        self.live_rate = 0.0  # samples a second, in the last block of live steps
        self.pairs: list[tuple[float, float]] = []  # samples a second: live, replayed
        self.changed = False  # a kept batch was, in place
        self.unit: Unit = "samples"
        self.count: Callable[[object], int] | None = None  # known from the first batch on
        self.queue: Queue | Waiting | None = None  # of the GPU that the loop computes on
        self.start()

    def start(self) -> None:
        """Begin with what is not measured: workers start, their queue is empty."""
        self._begin(STARTING)
        self.left_in_phase = self.in_flight + 1  # batches of a phase that is not measured

    def end_step(self, took_ns: int, samples: int, now: int) -> None:
        """Account a step of the present phase, and go on to the next phase where it is time."""
        if self.phase in (LIVE, REPLAY):
            self.steps += 1
            self.samples += samples
            self.spent += took_ns
            if self.queue is not None and self.steps % BLOCK_STEPS == 0:
                self.queue.keep_up()
            if self.steps >= BLOCK_STEPS and self.spent >= BLOCK_NS:
                self._end_block(now)
        elif self.phase == FILLING:
            if now >= self.until:
                self._begin(REPLAY)
        else:
            self.left_in_phase -= 1
            if self.left_in_phase <= 0:
                self._begin(LIVE)

    def _end_block(self, now: int) -> None:
        """Note the rate of a block that was measured."""
        if self.queue is not None:
            self.spent = self.queue.end()
        rate = self.samples / self.spent * 1e9
        if self.phase == LIVE:
            self.live_rate = rate
            self.until = now + self.in_flight * self.spent // self.steps
            self._begin(FILLING)
        else:
            self.pairs.append((self.live_rate, rate))
            self.left_in_phase = self.in_flight
            self._begin(DRAINING if self.in_flight or self.queue is not None else LIVE)

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

    def keep(self, batch: object) -> None:
        """Keep a live batch for the replay."""
        kept = Kept(batch)
        self.kept.append(kept)
        most = max(1, KEPT_BYTES // max(1, kept.bytes))
        while len(self.kept) > most:
            self.kept.popleft()

    def replay(self) -> object:
        """Return one of the kept batches."""
        kept = self.kept[self.replayed % len(self.kept)]
        self.replayed += 1
        self.changed = self.changed or kept.is_changed()
        return kept.batch

    def samples_of(self, batch: object) -> int:
        """Return the samples of a batch; learn from the first one how to count, and what runs."""
        if self.count is None:
            self.count = counter_for(batch, self.batch_size)
            if self.count is None:
                self.unit = "batches"
                self.count = one_a_batch
            torch = sys.modules.get("torch")
            device = None if torch is None else device_in_use(torch)
            if device is not None and device.type != "cpu":
                self.queue = Queue(device) if device.type == "cuda" else Waiting(device)
        return self.count(batch)

    def write(self, log: EventLog) -> None:
        """Write what is known by now into the log of the loop's run."""
        found = self.found()
        log.write("headroom", **asdict(found), text=in_words(found))

    def found(self) -> Found:
        """Return what is known by now."""
        notes = [CANNOT_SHOW]
        if self.in_flight and self.queue is None:
            notes.append(SHARED_CORES)
        if self.changed:
            notes.append(IN_PLACE)
        pairs = len(self.pairs)
        if pairs < LEAST_PAIRS:
            return Found(self.unit, pairs, tuple(notes))
        import numpy as np

        live, perfect = np.array(self.pairs).T
        ratios = perfect / live
        draws = np.random.default_rng(0).choice(ratios, (DRAWS, pairs))  # our own generator
        low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
        factor = float(np.median(ratios))
        usual = float(np.median(live))
        return Found(
            unit=self.unit,
            pairs=pairs,
            notes=tuple(notes),
            factor=factor,
            low=float(low),
            high=float(high),
            live=usual,
            perfect=usual * factor,
        )


class HeadroomPass(StandsIn):
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
        self.watched = iterator if isinstance(iterator, Pass) else None
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
            if self.watched is not None:
                self.watched.pause()
            batch = blocks.replay()
        else:
            batch = self._live()
            blocks.keep(batch)
        self.samples = blocks.samples_of(batch)
        return copied(batch)

    def _live(self) -> object:
        if self.watched is not None:
            if self.watched.is_paused and self.blocks.phase == DRAINING:
                return self.watched.skip()
            self.watched.resume()
        return next(self.iterator)

    def _finish(self) -> None:
        """End the pass after as many batches as the loader has, of which some were replayed."""
        if self.watched is not None:
            self.watched.end("exhausted")
            if self.may_replay():
                self.blocks.write(self.watched.recorder.log)
        self.left = 0
        raise StopIteration


class Headroom:
    """A loader that replays some of its batches: iterate it in place of your own.

    Afterwards `factor`, `low` and `high` say how much faster the loop would be with a perfect one.
    """

    def __init__(self, loader: Iterable[object]):
        self.loader = loader
        self.blocks = Blocks(loader)

    def __iter__(self) -> HeadroomPass:
        return HeadroomPass(self.blocks, iter(self.loader), self.loader, lambda: True)

    def __len__(self) -> int:
        return len(cast(Sized, self.loader))

    def __getattr__(self, name: str) -> object:
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
        return "\n".join([in_words(found), *found.notes])


def headroom(loader: Iterable[object]) -> Headroom:
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
