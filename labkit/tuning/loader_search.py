"""The search for a loader: the cheapest that is as fast as the fastest.

It only decides. What runs, predicts and refuses is given to it, so that a test can give it others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.loader_words import epochs_unseen
from labkit.diagnosis.recommendation import AS_GOOD, WORKER_COUNTS
from labkit.knobs import Settings
from labkit.process import launcher
from labkit.results.run import Run
from labkit.spec import PYTORCH_PREFETCH
from labkit.tuning.search import SURE, Search
from labkit.tuning.search_result import Tuning
from labkit.tuning.settings import LoaderSetting, distance
from labkit.tuning.trial import TIE, Trial, cheapest_of_fastest
from labkit.tuning.trial_bench import TrialBench

PREFETCH_FACTORS = (2, 4, 8)  # with 1, each worker would wait between its batches
MOST_TRIED = 8  # loader settings measured, the start included
CLOSE = 0.05  # up to here, one run does not show a gain
RUNS_EACH = 3  # of the start and of the best where they are that close

Forecast = Callable[[Run, LoaderSetting, Settings], "Estimate | None"]  # a run, its loader, changes
Refuse = Callable[[LoaderSetting, Sequence[Trial]], "str | None"]


class LoaderSearch(Search[Tuning]):
    """A search for the cheapest loader that is as fast as the fastest.

    What is predicted to gain is measured first, then the neighbours of the best, until none of them
    is better. A gain so small that it may be noise is measured again.
    """

    def __init__(
        self,
        found: Tuning,
        bench: TrialBench,
        forecast: Forecast,
        refuse: Refuse,
        *,
        max_workers: int,
        cores: int,
        try_pinned: bool = False,
    ):
        """Set up a search.

        `forecast(run, its loader, changes)` predicts samples/s; `refuse` says why a setting may not
        run; `cores` are the machine's; `try_pinned` tries the best with the other
        `pin_memory` at the end.
        """
        super().__init__(found, bench)
        self.forecast = forecast
        self.refuse = refuse
        self.counts = [count for count in WORKER_COUNTS if count <= max_workers]
        self.cores = cores
        self.try_pinned = try_pinned
        self.refused: dict[LoaderSetting, str] = {}

    @property
    def best(self) -> Trial:
        """The cheapest of the trials that tie with the fastest."""
        return cheapest_of_fastest(self.found.tried) or self.found.tried[0]

    def run(self) -> Tuning:
        """Search to the end, and say what the numbers are worth, also after an interrupt."""
        try:
            return super().run()
        finally:
            if not launcher.wanted():
                launcher.end_standby()
            if self.found.winner:
                self._explain(self.found.winner)

    def propose(self) -> Trial | None:
        """Return what is predicted to gain, then the best's neighbours, then the best pinned."""
        if len(self.found.tried) < MOST_TRIED:
            trial = self._predicted() or self._unseen() or self._neighbour()
            if trial is not None:
                return trial
        if not self.try_pinned:
            return None
        self.try_pinned = False
        pin_memory = not self.best.setting.pin_memory
        setting = self.best.setting.but(pin_memory=pin_memory)
        return self._trial(setting, f"the best so far with pin_memory={pin_memory}")

    def judge(self, trial: Trial) -> None:
        """Compare a trial with the start."""
        if trial.rate:
            trial.gain = trial.rate / self.found.tried[0].speed

    def finish(self) -> None:
        """Choose the best, or the start where it is not slower after all."""
        found = self.found
        found.chosen = self._not_slower(self.best)
        for trial in found.tried[1:]:
            self.judge(trial)
        if self.refused:
            cheapest = min(self.refused, key=lambda setting: setting.cost)
            found.notes.append(
                f"Not tried: {len(self.refused)} settings; {cheapest}: {self.refused[cheapest]}."
            )
        if len(found.tried) == 1:
            found.notes.append(
                "No other setting was predicted to be faster or as fast and cheaper."
            )

    def _explain(self, winner: Trial) -> None:
        """Give the reasons for settings that were not searched, and name doubtful numbers."""
        found = self.found
        found.line = winner.runs[-1].machine.line  # with the threads of the user's step
        why = "there are no workers to keep"
        if winner.setting.num_workers:
            why = "keeps the workers from one epoch to the next; changes nothing within an epoch"
            unseen = epochs_unseen(found.code)
            why = f"{why}.{unseen}" if unseen else why
        found.reasons["persistent_workers"] = why
        runs = [run for trial in found.tried for run in trial.runs]
        shared = [use.others_share for use in map(CoreUse.of, runs) if use.is_shared]
        if shared:
            found.notes.append(
                f"Other programs used up to {max(shared):.0%} of the cores in {len(shared)} of "
                f"{len(runs)} runs: their numbers are doubtful."
            )

    def expected(self, setting: LoaderSetting) -> Estimate | None:
        """Predict a setting from the nearest run, corrected by how far off that run itself was."""
        measured = [trial for trial in self.found.tried if trial.runs]
        nearest = min(measured, key=lambda trial: distance(trial.setting, setting))
        run = nearest.runs[-1]
        predicted = self.forecast(run, nearest.setting, setting.searched)
        itself = self.forecast(run, nearest.setting, nearest.setting.searched)
        if predicted is None or itself is None:
            return None
        return predicted.times(nearest.speed / itself.value)

    def _predicted(self) -> Trial | None:
        """Return the cheapest of those predicted fastest, or as fast as the best and cheaper.

        As `recommend_workers` does, it looks at other prefetch factors than PyTorch's own last.
        """
        best = self.best
        usual = [with_workers(best.setting, count) for count in self.counts]
        deeper = [best.setting.but(prefetch_factor=factor) for factor in PREFETCH_FACTORS]
        cheaper = []
        for settings in (usual, deeper):
            hopes: dict[LoaderSetting, float] = {}
            for setting in filter(self._may_run, settings):
                expected = self.expected(setting)
                if expected is not None:
                    hopes[setting] = expected.value
            top = max(hopes.values(), default=0.0)
            if top > (1 + CLOSE) * best.speed:
                as_good = [each for each, hope in hopes.items() if hope >= (1 - AS_GOOD) * top]
                return self._cheapest(as_good, "the cheapest of those predicted fastest")
            as_fast = [each for each, hope in hopes.items() if hope >= (1 - TIE / 2) * best.speed]
            cheaper += [each for each in as_fast if each.num_workers < best.setting.num_workers]
        return self._cheapest(cheaper, "fewer workers, and predicted to be as fast")

    def _unseen(self) -> Trial | None:
        """Return a trial of as many workers as cores, unless workers have been measured already.

        A run without workers hands no batch over: that none are best is only its prediction.
        """
        if any(trial.setting.num_workers for trial in self.found.tried):
            return None
        workers = max(count for count in self.counts if count <= self.cores)
        setting = with_workers(self.best.setting, workers)
        why = "no workers are predicted to be best: measure some before that is believed"
        return self._trial(setting, why) if self._may_run(setting) else None

    def _neighbour(self) -> Trial | None:
        """Return a trial of the next larger or smaller number of workers, where it may be better.

        As long as all runs come as predicted, those predicted to be slower are left out.
        """
        best = self.best
        own = best.setting.num_workers
        if not own:
            return None
        trusted = all(trial.came_as_predicted for trial in self.found.tried)
        measured = {trial.setting.num_workers for trial in self.found.tried}
        more = min((count for count in self.counts if count > own), default=own)
        fewer = max((count for count in self.counts if count < own), default=own)
        for count in (more, fewer):
            setting = best.setting.but(num_workers=count)
            if count in measured or not self._may_run(setting):
                continue
            expected = self.expected(setting)
            if not trusted or expected is None or expected.high > best.speed:
                return self._trial(setting, "beside the best: measured before that is believed")
        return None

    def _cheapest(self, settings: list[LoaderSetting], why: str) -> Trial | None:
        if not settings:
            return None
        return self._trial(min(settings, key=lambda setting: setting.cost), why)

    def _trial(self, setting: LoaderSetting, why: str) -> Trial:
        """Return a trial of a setting, with its prediction."""
        return Trial.changing(self.found.start, setting.to_dict(), why, self.expected(setting))

    def _may_run(self, setting: LoaderSetting) -> bool:
        """Whether a setting is new, fits in memory, and no cheaper one has failed."""
        for trial in self.found.tried:
            if trial.setting == setting or (trial.error and trial.setting.cost <= setting.cost):
                return False
        if why := self.refuse(setting, self.found.tried):
            self.refused[setting] = why
        return not why

    def _not_slower(self, best: Trial) -> Trial:
        """Return `best`, or the start where it is not slower after all."""
        start = self.found.tried[0]
        is_cheaper = best.setting.cost < start.setting.cost
        is_sure = is_cheaper and best.expected is not None and best.came_as_predicted
        if best is start or best.speed >= (1.0 if is_sure else 1 + SURE) * start.speed:
            return best
        uneven = max(trial.runs[-1].spread or 0.0 for trial in (best, start))
        if not is_cheaper and best.speed / start.speed - 1 <= min(CLOSE, uneven):
            return start  # more runs would only tell how small it is
        self._measure_again(best, start)
        return best if not best.error and best.speed >= start.speed else start

    def _measure_again(self, best: Trial, start: Trial) -> None:
        """Measure both more often, the closer they are."""
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
