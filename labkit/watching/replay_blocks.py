"""Blocks of live and of replayed batches take turns: whose turn it is, and what each block took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from labkit.bench.batch_contents import counter_for
from labkit.bench.loader_knobs import in_flight, knobs_of
from labkit.watching.batches import one_a_batch
from labkit.watching.block_timers import BlockTimer, timer_in_use
from labkit.watching.kept_batches import Kept
from labkit.watching.log_words import Unit

KEPT_BATCHES = 8  # batches, at most
KEPT_BYTES = 256 * 2**20  # and as many as fit; at least one
BLOCK_NS = 400_000_000  # of measured steps, at least
BLOCK_STEPS = 5
STARTING, LIVE, FILLING, REPLAY, DRAINING = range(5)  # what a block is of


class Blocks:
    """The blocks of live and of replayed steps, and what they took."""

    def __init__(self, loader: object):
        knobs = knobs_of(loader)
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
        self.count: Callable[[object], int] = one_a_batch  # as the first batch shows
        self.timer: BlockTimer | None = None  # of the GPU that the loop computes on, as seen then
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
            if self.timer is not None and self.steps % BLOCK_STEPS == 0:
                self.timer.keep_up()
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
        if self.timer is not None:
            self.spent = self.timer.end()
        rate = self.samples / self.spent * 1e9
        if self.phase == LIVE:
            self.live_rate = rate
            self.until = now + self.in_flight * self.spent // self.steps
            self._begin(FILLING)
        else:
            self.pairs.append((self.live_rate, rate))
            self.left_in_phase = self.in_flight
            self._begin(DRAINING if self.in_flight or self.timer is not None else LIVE)

    def _begin(self, phase: int) -> None:
        self.phase = phase
        self.steps = 0
        self.samples = 0
        self.spent = 0
        if self.timer is not None and phase in (LIVE, REPLAY):
            self.timer.begin()

    @property
    def shares_cores(self) -> bool:
        """Whether the model computes on the cores that the loader's workers use."""
        return self.in_flight > 0 and self.timer is None

    @property
    def replays(self) -> bool:
        """Whether the next batch is a kept one."""
        return self.phase in (FILLING, REPLAY)

    def keep(self, batch: object) -> None:
        """Keep a live batch for the replay; the first shows what all are."""
        if not self.kept:
            self._learn(batch)
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

    def _learn(self, batch: object) -> None:
        count = counter_for(batch, self.batch_size)
        self.unit = "samples" if count else "batches"
        self.count = count or one_a_batch
        self.timer = timer_in_use()
