"""The search for what makes a training script faster: every answer is a run of the script."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from labkit.tuning.loader_search import WORTH, LoaderSearch
from labkit.tuning.script_bench import ScriptBench, Tried
from labkit.tuning.search_result import Tuning
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import Trial

READY_GAIN = 1.10  # with ready batches; where they gain less, the loader is not the limit
PAIRS = 3  # of runs in turn, with the change and without
USUAL_RUNS = 18  # of a whole search
NEIGHBOURS = 0.10  # share of the cores by which the two runs of a pair may differ in others' use
REPEATS = 2  # of pairs that differ more
UNEVEN = 5.0  # a longest wait of so many steps' time asks for a longer queue
WAITING = 0.05  # share of the time; below it no queue is worth a trial
DEEP = 4  # times as long a queue


class ScriptSearch(LoaderSearch):
    """A search over runs of a script, within a budget of time.

    Batches that are ready tell first whether the loader is the limit at all. Then one change at a
    time is tried, and the best is run in turn with the script as it is.
    """

    bench: ScriptBench

    def __init__(
        self, found: Tuning, bench: ScriptBench, *, budget_s: float, cores: int,
        max_workers: int, on_card: bool,
    ):  # fmt: skip
        """`budget_s` is for all that follows the run of the script as it is."""
        super().__init__(
            found, bench, lambda *_: None, lambda *_: None, max_workers=max_workers,
            try_pinned=on_card,
        )  # fmt: skip
        self.cores = cores
        self.on_card = on_card
        self.until_s = time.monotonic() + budget_s
        self.runs: dict[int, list[Tried]] = {}  # of each trial, by its id

    def measure(self, trial: Trial) -> None:
        """Run a trial once (more), and keep what was seen."""
        super().measure(trial)
        tried = self.bench.tried[-1]
        self.runs.setdefault(id(trial), []).append(tried)
        is_slow = tried.seen is not None and tried.seen["ended"] == "slow"
        trial.remark = "ended early: clearly slower" if is_slow else ""

    def propose(self) -> Trial | None:
        """Return what to try next, as long as there is time to confirm what is found.

        Ready batches are tried in any case: they tell whether a change can bring anything.
        """
        proposed = super().propose()
        run_s = median(tried.seconds for tried in self.bench.tried)
        is_spent = time.monotonic() + 2 * PAIRS * run_s > self.until_s
        if proposed is not None and not proposed.is_bound and is_spent:
            self.found.notes.append(
                "The budget is spent: what would have come next was not tried. One run of this "
                f"script takes {run_s:.0f} s: --budget {USUAL_RUNS * run_s:.0f} is enough for most."
            )
            return None
        return proposed

    def trials(self) -> Iterator[Trial]:
        """Yield ready batches, and where they gain, one change of the loader after the other."""
        start = self.found.tried[0]
        ready = Trial.changing(start.knobs, {"ready": True}, "what a perfect loader would bring")
        ready.is_bound = True
        yield ready
        self.found.ready_gain = ready.speed / start.speed if ready.rates else None
        if ready.rates and ready.speed < READY_GAIN * start.speed:
            self.found.stopped = "the loader is not what holds this loop back"
            return
        if start.setting.num_workers:
            yield from self.change(library_threads=1)
        yield from self.worker_counts()
        yield from self.one_thread_each()
        yield from self.neighbours()
        yield from self.queues()
        if self.best.setting.num_workers:
            yield from self.change(library_threads=1)
            if self.found.epochs:
                yield from self.change(persistent_workers=True)
        if self.on_card and not self.best.setting.pin_memory:
            yield from self.change(pin_memory=True)
        elif not self.on_card and self.best.setting.num_workers:
            yield from self.change(torch_threads=max(1, self.cores - 1))

    def change(
        self, why: str = "added to the best so far", trial: Trial | None = None, **more: int | None
    ) -> Iterator[Trial]:
        """Yield a trial, the best so far if none is given, with one more change, if that is new."""
        knobs = (trial or self.best).knobs | more
        if all(each.knobs != knobs for each in self.found.tried):
            yield Trial.changing(self.found.start, knobs, why)

    def one_thread_each(self) -> Iterator[Trial]:
        """Yield the fastest with workers, each of one thread.

        Threads of the model and of every worker take each other's cores: workers may seem to lose.
        """
        working = [each for each in self.measured if each.setting.num_workers]
        if working:
            fastest = max(working, key=lambda trial: trial.speed)
            yield from self.change("workers of one thread each", fastest, library_threads=1)

    def queues(self) -> Iterator[Trial]:
        """Yield a longer queue where the best waits, and some waits are far longer than others."""
        best = self.best
        seen = self.runs[id(best)][-1].seen
        if not best.setting.num_workers or seen is None or not seen["batches"]:
            return
        step_s = seen["seconds"] / seen["batches"]
        if seen["wait"] > WAITING and seen["longest_wait_s"] > UNEVEN * step_s:
            deeper = DEEP * (best.setting.prefetch_factor or 1)
            yield from self.change(prefetch_factor=deeper)

    def may_run(self, setting: LoaderSetting, why: str) -> Iterator[Trial]:
        """Yield the best so far with another loader, if no cheaper one failed.

        Where runs span epochs workers are kept: else their start would speak against many of them.
        """
        if self.found.epochs and setting.num_workers:
            setting = setting.but(persistent_workers=True)
        failed = [trial.setting.cost for trial in self.found.tried if trial.error]
        if all(cost > setting.cost for cost in failed):
            yield from self.change(why, **setting.to_dict())

    def confirmed(self, best: Trial) -> Trial:
        """Return `best` where it gains in pairs of runs in turn, else the script as it is."""
        start = self.found.tried[0]
        if best is start:
            was_changed = any(not trial.is_bound for trial in self.found.tried[1:])
            why = "nothing that was tried is faster" if was_changed else "no time to try a change"
            self.found.stopped = self.found.stopped or why
            return start
        repeats = REPEATS
        self.bench.to_the_end = True
        while len(self.found.pairs) < PAIRS and not (best.error or start.error):
            self.measure(best)
            self.measure(start)
            self.each()
            pair = [self.runs[id(trial)][-1] for trial in (best, start)]
            apart = abs(pair[0].others - pair[1].others)
            if apart > NEIGHBOURS and repeats:
                repeats -= 1
                continue
            if not (best.error or start.error):
                self.found.pairs.append(best.rates[-1] / start.rates[-1])
        pairs = self.found.pairs
        if len(pairs) == PAIRS and median(pairs) >= 1 + WORTH and min(pairs) > 1:
            return best
        self.found.stopped = "nothing gained beyond the noise when it was run in turn"
        if (
            len(pairs) == PAIRS
            and median(pairs) >= 1 - WORTH
            and best.setting.cost < start.setting.cost
        ):
            self.found.notes.append(f"As fast, and cheaper: {best.what}.")
        return start

    def explain(self, winner: Trial) -> None:
        """Say what the numbers are worth."""
        found = self.found
        others = max(tried.others for tried in self.bench.tried)
        if others > NEIGHBOURS:
            worth = "only the pairs count" if found.pairs else "these numbers are doubtful"
            found.notes.append(f"Other programs used up to {others:.0%} of the cores: {worth}.")
