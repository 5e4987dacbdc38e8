"""The search for a loader: the cheapest that is as fast as the fastest of those measured."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from labkit.knobs import Setting
from labkit.prediction.prediction import WORKER_COUNTS
from labkit.process import launcher
from labkit.spec import PYTORCH_PREFETCH
from labkit.tuning.search import Bench, Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.settings import cost, of_loader
from labkit.tuning.trial import Trial

SURE = 0.10  # a gain above this needs no second measurement
WORTH = 0.03  # a doubling of the workers that gains less is the last
ALWAYS = 4  # workers are tried in any case: two may lose where four gain
DEEP = 4  # times as long a queue
PAIRS = 3  # of runs in turn, with the change and without
NEIGHBOURS = 0.10  # share of the cores by which the two runs of a pair may differ in others' use
REPEATS = 2  # of pairs that differ more


class LoaderSearch(Search):
    """A search for the cheapest loader that is as fast as the fastest.

    None, two and four workers are measured, doubled as long as that gains; then what lies beside
    the best, a longer queue where waits are uneven, and pinned memory on a card. A gain so small
    that it may be noise is measured again, in turn with the start.
    """

    sure = SURE  # a gain above this is not run in turn

    def __init__(self, found: Tuning, bench: Bench, *, max_workers: int, on_card: bool = False):
        """Set up a search."""
        super().__init__(found, bench)
        self.counts = [count for count in WORKER_COUNTS if count <= max_workers]
        self.on_card = on_card

    def run(self) -> Tuning:
        """Search to the end, and say what the numbers are worth, also after an interrupt."""
        try:
            return super().run()
        finally:
            if not launcher.wanted():
                launcher.end_standby()
            self.explain()

    def go_on(self) -> None:
        """Run the trials, then what has to be run in turn."""
        for trial in self.trials():
            self.measure(trial)
            self.each()
        self.found.chosen = self.confirmed(self.best)

    def trials(self) -> Iterator[Trial]:
        """Yield what to measure, one after the other; each has been measured before the next."""
        yield from self.worker_counts()
        yield from self.neighbours()
        yield from self.queues()
        if self.on_card:
            yield from self.change(pin_memory=True)

    def worker_counts(self) -> Iterator[Trial]:
        """Yield no workers, 2 and 4, doubled as long as that pays."""
        yield from self.with_workers(0, "no workers: what they cost is seen")
        count = 2
        while count <= self.counts[-1] and (count <= ALWAYS or self.gained(count // 2)):
            yield from self.with_workers(count, "workers doubled while it pays")
            count *= 2

    def gained(self, count: int) -> bool:
        """Return whether so many workers beat every trial with fewer."""
        measured = [each for each in self.found.tried if not each.is_bound]
        fewer = [each.speed for each in measured if each.workers < count]
        own = [each.speed for each in measured if each.workers == count]
        return max(own, default=0.0) >= (1 + WORTH) * max(fewer, default=0.0)

    def neighbours(self) -> Iterator[Trial]:
        """Yield the next larger and the next smaller number of workers, until neither is better."""
        best = None
        while best is not self.best:
            best = self.best
            own = best.workers
            more = min((count for count in self.counts if count > own), default=own)
            fewer = max((count for count in self.counts if count < own), default=own)
            for count in (more, fewer):
                yield from self.with_workers(count, "beside the best")

    def queues(self) -> Iterator[Trial]:
        """Yield a longer queue where the best waits, and some waits are far longer than others."""
        best = self.best
        if best.workers and best.outcomes[-1].is_uneven:
            deeper = DEEP * best.knobs["prefetch_factor"]
            yield from self.change("a longer queue bridges uneven items", prefetch_factor=deeper)

    def with_workers(self, count: int, why: str) -> Iterator[Trial]:
        """Yield the best so far with other workers, at PyTorch's own prefetch_factor.

        Where runs span epochs workers are kept: else their start would speak against many of them.
        """
        workers = {"num_workers": count, "prefetch_factor": PYTORCH_PREFETCH}
        if self.found.epochs:
            workers["persistent_workers"] = True
        yield from self.change(why, **of_loader(self.found.start | workers))

    def change(
        self,
        why: str = "added to the best so far",
        before: Trial | None = None,
        **more: Setting,
    ) -> Iterator[Trial]:
        """Yield a trial with one more change: of the best so far, if no other is given.

        Not where it has been tried, or where a cheaper one failed.
        """
        trial = Trial.changing(self.found.start, (before or self.best).knobs | more, why)
        for each in self.found.tried:
            if each.knobs == trial.knobs:
                return
            if each.error and cost(each.knobs) <= cost(trial.knobs):
                return
        yield trial

    def confirmed(self, best: Trial) -> Trial:
        """Return `best`, or the start where it does not gain when both are run in turn."""
        start = self.start
        if best is start:
            was_changed = any(not trial.is_bound for trial in self.found.tried[1:])
            why = "nothing that was tried is faster" if was_changed else "no time to try a change"
            self.found.stopped = self.found.stopped or why
            return start
        if best.speed >= (1 + self.sure) * start.speed:
            return best
        self.run_in_turn(best)
        pairs = self.found.pairs
        if len(pairs) == PAIRS:
            if median(pairs) >= 1 + WORTH and min(pairs) > 1:
                return best
            if median(pairs) >= 1 and cost(best.knobs) < cost(start.knobs):
                if not self.found.command:
                    return best
                self.found.notes.append(f"As fast, and cheaper: {best.what}.")
        self.found.stopped = "nothing gained beyond the noise when it was run in turn"
        return start

    def run_in_turn(self, best: Trial) -> None:
        """Run a trial in turn with the start; a pair with other neighbours is repeated."""
        repeats = REPEATS
        while len(self.found.pairs) < PAIRS and not (best.error or self.start.error):
            self.measure(best, whole=True)
            self.measure(self.start, whole=True)
            self.each()
            with_change = best.outcomes[-1]
            without = self.start.outcomes[-1]
            if repeats and abs(with_change.others - without.others) > NEIGHBOURS:
                repeats -= 1
            elif with_change.rate and without.rate:
                self.found.pairs.append(with_change.rate / without.rate)

    def explain(self) -> None:
        """Say what the numbers are worth."""
        found = self.found
        others = max((each.others for trial in found.tried for each in trial.outcomes), default=0)
        if others > NEIGHBOURS:
            worth = "only the pairs count" if found.pairs else "these numbers are doubtful"
            found.notes.append(f"Other programs used up to {others:.0%} of the cores: {worth}.")
