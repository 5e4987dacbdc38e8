"""The search for what makes a training script faster: every answer is a run of the script."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import median

from labkit.tuning.loader_search import PAIRS, LoaderSearch
from labkit.tuning.search import Bench
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import Trial

READY_GAIN = 1.10  # with ready batches; where they gain less, the loader is not the limit
USUAL_RUNS = 18  # of a whole search


class ScriptSearch(LoaderSearch):
    """A search over runs of a script, within a budget of time.

    Batches that are ready tell first whether the loader is the limit at all. Then one change at a
    time is tried, and the best is in any case run in turn with the script as it is.
    """

    sure = math.inf

    def __init__(
        self,
        found: Tuning,
        bench: Bench,
        *,
        budget_s: float,
        cores: int,
        max_workers: int,
        on_card: bool,
    ):
        """`budget_s` is for all that follows the run of the script as it is."""
        super().__init__(found, bench, max_workers=max_workers, on_card=on_card)
        self.cores = cores
        self.until_s = time.monotonic() + budget_s

    def trials(self) -> Iterator[Trial]:
        """Yield ready batches, and where they gain, one change after the other.

        Those as long as there is time to confirm what is found.
        """
        ready = Trial.changing(self.start.knobs, {"ready": True}, "what a perfect loader brings")
        ready.is_bound = True
        yield ready
        if ready.rates:
            self.found.ready_gain = ready.speed / self.start.speed
            if self.found.ready_gain < READY_GAIN:
                self.found.stopped = "the loader is not what holds this loop back"
                self.found.limit = self.found.verdict.bottleneck if self.found.verdict else "unsure"
                return
        for trial in self.one_by_one():
            run_s = median(each.seconds for trial in self.found.tried for each in trial.outcomes)
            if time.monotonic() + 2 * PAIRS * run_s > self.until_s:
                self.found.notes.append(
                    "The budget is spent: what would have come next was not tried. One run of this "
                    f"script takes {run_s:.0f} s: --budget {USUAL_RUNS * run_s:.0f} is enough for "
                    "most."
                )
                return
            yield trial

    def one_by_one(self) -> Iterator[Trial]:
        """Yield one change of the loader, or of its workers' threads, after the other."""
        if self.start.workers:
            yield from self.change(library_threads=1)
        yield from self.worker_counts()
        yield from self.one_thread_each()
        yield from self.neighbours()
        yield from self.queues()
        if self.best.workers:
            yield from self.change(library_threads=1)
            if self.found.epochs:
                yield from self.change(persistent_workers=True)
        if self.on_card:
            yield from self.change(pin_memory=True)
        elif self.best.workers:
            yield from self.change(torch_threads=max(1, self.cores - 1))

    def one_thread_each(self) -> Iterator[Trial]:
        """Yield the fastest with workers, each of one thread.

        Threads of the model and of every worker take each other's cores: workers may seem to lose.
        """
        working = [each for each in self.found.tried if each.workers and each.rates]
        working = [each for each in working if not each.is_bound]
        if working:
            fastest = max(working, key=lambda trial: trial.speed)
            yield from self.change("workers of one thread each", fastest, library_threads=1)
