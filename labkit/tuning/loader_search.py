"""The search for a loader: the cheapest that is as fast as the fastest, of all that were measured.

It only decides. What runs, predicts and refuses is given to it, so that a test can give it others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.recommendation import WORKER_COUNTS
from labkit.knobs import Settings
from labkit.process import launcher
from labkit.results.run import Run
from labkit.spec import PYTORCH_PREFETCH
from labkit.tuning.search import SURE, Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.settings import LoaderSetting, distance
from labkit.tuning.trial import Trial, cheapest_of_fastest
from labkit.tuning.trial_bench import Bench

PREFETCH_FACTORS = (4, 8)  # instead of PyTorch's 2; with 1, each worker would wait between batches
WORTH = 0.03  # a doubling of the workers that gains less is the last
ALWAYS = 4  # workers are tried in any case: two may lose where four gain
CLOSE = 0.05  # up to here, one run does not show a gain
RUNS_EACH = 3  # of the start and of the best where they are that close

Forecast = Callable[[Run, LoaderSetting, Settings], "Estimate | None"]  # a run, its loader, changes
Refuse = Callable[[LoaderSetting, Sequence[Trial]], "str | None"]


class LoaderSearch(Search[Tuning]):
    """A search for the cheapest loader that is as fast as the fastest.

    What is predicted to be best is measured first; then none, two and four workers, doubled as
    long as that gains; then what lies beside the best. A prediction takes the place of no
    measurement. A gain so small that it may be noise is measured again.
    """

    def __init__(
        self,
        found: Tuning,
        bench: Bench,
        forecast: Forecast,
        refuse: Refuse,
        *,
        max_workers: int,
        try_pinned: bool = False,
    ):
        """Set up a search.

        `forecast(run, its loader, changes)` predicts samples/s; `refuse` says why a setting may not
        run; `try_pinned` tries the best with the other `pin_memory`.
        """
        super().__init__(found, bench)
        self.forecast = forecast
        self.refuse = refuse
        self.counts = [count for count in WORKER_COUNTS if count <= max_workers]
        self.try_pinned = try_pinned
        self.refused: dict[LoaderSetting, str] = {}
        self.plan = self.trials()

    @property
    def best(self) -> Trial:
        """The cheapest of the trials that tie with the fastest."""
        return cheapest_of_fastest(self.found.tried, self.found.tie) or self.found.tried[0]

    @property
    def measured(self) -> list[Trial]:
        """The trials that came to a rate, but for what only bounds the others."""
        return [each for each in self.found.tried if each.rates and not each.is_bound]

    def run(self) -> Tuning:
        """Search to the end, and say what the numbers are worth, also after an interrupt."""
        try:
            return super().run()
        finally:
            if not launcher.wanted():
                launcher.end_standby()
            if self.found.winner:
                self.explain(self.found.winner)

    def propose(self) -> Trial | None:
        """Return what to measure next."""
        return next(self.plan, None)

    def trials(self) -> Iterator[Trial]:
        """Yield what to measure, one after the other; each has been measured before the next."""
        yield from self.worker_counts()
        yield from self.neighbours()
        yield from self.queues()
        if self.try_pinned:
            pin_memory = not self.best.setting.pin_memory
            setting = self.best.setting.but(pin_memory=pin_memory)
            yield from self.may_run(setting, f"the best so far with pin_memory={pin_memory}")

    def worker_counts(self) -> Iterator[Trial]:
        """Yield the number that is predicted best, none, 2 and 4, doubled as long as that pays."""
        start = self.found.tried[0].setting
        hoped = self._predicted_best()
        if hoped is not None:
            yield from self.may_run(hoped, "predicted to be the fastest")
        yield from self.may_run(with_workers(start, 0), "no workers: what they cost is seen")
        count = 2
        while count <= self.counts[-1] and (count <= ALWAYS or self.gained(count // 2)):
            yield from self.may_run(with_workers(start, count), "workers doubled while it pays")
            count *= 2

    def gained(self, count: int) -> bool:
        """Return whether so many workers beat every trial with fewer."""
        fewer = [each.speed for each in self.measured if each.setting.num_workers < count]
        own = [each.speed for each in self.measured if each.setting.num_workers == count]
        return max(own, default=0.0) >= (1 + WORTH) * max(fewer, default=0.0)

    def neighbours(self) -> Iterator[Trial]:
        """Yield the next larger and the next smaller number of workers, until neither is better."""
        best = None
        while best is not self.best:
            best = self.best
            own = best.setting.num_workers
            more = min((count for count in self.counts if count > own), default=own)
            fewer = max((count for count in self.counts if count < own), default=own)
            for count in (more, fewer):
                setting = with_workers(best.setting, count)
                yield from self.may_run(setting, "beside the best")

    def queues(self) -> Iterator[Trial]:
        """Yield longer queues, where one is predicted to gain."""
        for factor in PREFETCH_FACTORS:
            best = self.best
            if not best.setting.num_workers:
                return
            setting = best.setting.but(prefetch_factor=factor)
            expected = self.expected(setting)
            if expected is not None and expected.value > (1 + CLOSE) * best.speed:
                yield from self.may_run(setting, "a longer queue bridges uneven items")

    def judge(self, trial: Trial) -> None:
        """Compare a trial with the start."""
        if trial.rate:
            trial.gain = trial.rate / self.found.tried[0].speed

    def finish(self) -> None:
        """Choose the best, or the start where it is not slower after all."""
        found = self.found
        found.chosen = self.confirmed(self.best)
        for trial in found.tried[1:]:
            self.judge(trial)
        if self.refused:
            cheapest = min(self.refused, key=lambda setting: setting.cost)
            found.notes.append(
                f"Not tried: {len(self.refused)} settings; {cheapest}: {self.refused[cheapest]}."
            )

    def explain(self, winner: Trial) -> None:
        """Give the reasons for settings that were not searched, and name doubtful numbers."""
        found = self.found
        why = "there are no workers to keep"
        if winner.setting.num_workers:
            why = "keeps the workers from one epoch to the next; changes nothing within an epoch"
        found.reasons["persistent_workers"] = why
        runs = [run for trial in found.tried for run in trial.runs]
        found.line = winner.runs[-1].machine.line  # with the threads of the user's step
        shared = [use.others_share for use in map(CoreUse.of, runs) if use.is_shared]
        if shared:
            found.notes.append(
                f"Other programs used up to {max(shared):.0%} of the cores in {len(shared)} of "
                f"{len(runs)} runs: their numbers are doubtful."
            )

    def expected(self, setting: LoaderSetting) -> Estimate | None:
        """Predict a setting from the nearest run, corrected by how far off that run itself was."""
        measured = [trial for trial in self.found.tried if trial.runs]
        if not measured:
            return None
        nearest = min(measured, key=lambda trial: distance(trial.setting, setting))
        run = nearest.runs[-1]
        predicted = self.forecast(run, nearest.setting, setting.searched)
        itself = self.forecast(run, nearest.setting, nearest.setting.searched)
        if predicted is None or itself is None:
            return None
        return predicted.times(nearest.speed / itself.value)

    def _predicted_best(self) -> LoaderSetting | None:
        """Return the cheapest of those predicted fastest; None where nothing is predicted."""
        start = self.found.tried[0].setting
        usual = [with_workers(start, count) for count in self.counts]
        hopes = {setting: self.expected(setting) for setting in usual}
        values = {setting: each.value for setting, each in hopes.items() if each is not None}
        as_good = [each for each in values if values[each] >= (1 - WORTH) * max(values.values())]
        return min(as_good, key=lambda setting: setting.cost, default=None)

    def may_run(self, setting: LoaderSetting, why: str) -> Iterator[Trial]:
        """Yield the trial of a setting that is new, fits in memory, and no cheaper one failed."""
        for trial in self.found.tried:
            if trial.setting == setting or (trial.error and trial.setting.cost <= setting.cost):
                return
        if refused := self.refuse(setting, self.found.tried):
            self.refused[setting] = refused
            return
        knobs = setting.to_dict()
        yield Trial.changing(self.found.start, knobs, why, self.expected(setting))

    def confirmed(self, best: Trial) -> Trial:
        """Return `best`, or the start where it is not slower after all."""
        start = self.found.tried[0]
        if best is start or best.speed >= (1 + SURE) * start.speed:
            return best
        is_cheaper = best.setting.cost < start.setting.cost
        uneven = max(trial.runs[-1].spread or 0.0 for trial in (best, start))
        if not is_cheaper and best.speed / start.speed - 1 <= min(CLOSE, uneven):
            return start  # more runs would only tell how small it is
        self.measure_again(best, start)
        return best if not best.error and best.speed >= start.speed else start

    def measure_again(self, best: Trial, start: Trial) -> None:
        """Measure both more often, in turn, the closer they are."""
        while not best.error:
            is_close = abs(best.speed / start.speed - 1) <= CLOSE
            fewer = min(start, best, key=lambda trial: len(trial.rates))
            if len(fewer.rates) >= (RUNS_EACH if is_close else 2):
                return
            self.measure(fewer)
            self.each()


def with_workers(setting: LoaderSetting, workers: int) -> LoaderSetting:
    """Return a setting with other workers, at PyTorch's own prefetch_factor."""
    return setting.but(num_workers=workers, prefetch_factor=PYTORCH_PREFETCH)
