"""Which loader setting is worth the next run.

Where a run comes out as predicted, only a setting that may be clearly faster is worth another;
where it contradicts its prediction, more are worth one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.diagnosis.recommendation import TIE as AS_GOOD
from labkit.results.run import Run
from labkit.results.script import PYTORCH_PREFETCH
from labkit.tuning.settings import LoaderSetting, distance
from labkit.tuning.trial import TIE, Expected, Trial, cheapest_of_fastest

AGREES = 0.10  # a run that comes out within this of its prediction: the model is right about it
ENOUGH = 2  # settings measured, none of which contradicts: none is tried then for its range alone
CLOSE = 0.05  # a gain that one run shows; a trial further below the best is over
REACH = 0.10  # a prediction's range is taken seriously up to this far above its value
NEAR = 0.85  # of the best prediction at PyTorch's own depth, for other depths to be predicted too
PATIENCE = 1  # trials without a gain; the next has to be predicted a good deal faster

LoaderForecast = Callable[[Run, LoaderSetting, LoaderSetting], Expected | None]


def nothing_refused(_setting: LoaderSetting, _trials: Sequence[Trial]) -> str | None:
    """Refuse no setting."""
    return None


class LoaderProposals:
    """Proposes loader settings from the trials so far, of which the first is the baseline."""

    def __init__(
        self,
        tried: list[Trial],
        settings: Sequence[LoaderSetting],
        forecast: LoaderForecast,
        refuse: Callable[[LoaderSetting, Sequence[Trial]], str | None] = nothing_refused,
        cores: int = 1,
    ):
        """Take the trials, which may grow.

        `settings` are those allowed; `forecast` predicts a setting from (a run, its setting);
        `refuse` says why one may not run; `cores` are the machine's.
        """
        self.tried = tried
        self.settings = settings
        self.forecast = forecast
        self.refuse = refuse
        self.cores = cores
        self.refused: dict[LoaderSetting, str] = {}

    @property
    def best(self) -> Trial:
        """The cheapest of the trials that tie with the fastest."""
        return cheapest_of_fastest(self.tried) or self.tried[0]

    @property
    def contradicted(self) -> bool:
        """Whether a run came out beyond its predicted range: the model is wrong about this data."""
        return not all(trial.came_as_predicted for trial in self.tried)

    @property
    def agreed(self) -> bool:
        """Whether the last run came out as predicted: only a clear promise is worth another."""
        last = self.tried[-1]
        if last.expected is None or not last.rates or self.contradicted:
            return False
        return abs(last.speed / last.expected.value - 1) <= AGREES

    def faster(self) -> Trial | None:
        """Return the trial that promises more throughput, or None."""
        proposed = self._predicted(and_cheaper=False)
        if proposed is None and self.contradicted:
            return self._coarse()
        return proposed

    def faster_or_cheaper(self) -> Trial | None:
        """Return the trial that promises more throughput, or the same with fewer workers."""
        spared = self._core_spared()
        if not self.contradicted:
            return self._predicted(and_cheaper=True) or spared
        # What the model is most often wrong about is what cores cost that are all taken
        return spared or self._predicted(and_cheaper=True) or self._coarse()

    def unseen(self) -> Trial | None:
        """Return as many workers as cores, where no worker has been measured and none is best.

        That none are best is then the prediction of a run in which nothing was handed over.
        """
        if any(trial.setting.num_workers for trial in self.tried):
            return None
        why = "no workers are predicted to be best: measure some before that is believed"
        return self._if_allowed(self._usual(max(1, self.cores)), why)

    def neighbour(self) -> Trial | None:
        """Return the next fewer or more workers than the best, where they may be better.

        Where all runs came as predicted, those predicted to be slower are left out.
        """
        best = self.best
        own = best.setting.num_workers
        if not own:
            return None
        counts = {setting.num_workers for setting in self.settings}
        fewer = max((count for count in counts if 0 < count < own), default=own)
        more = min((count for count in counts if count > own), default=own)
        measured = {trial.setting.num_workers for trial in self.tried}
        for count in (fewer, more):
            if count in measured:
                continue
            why = "beside the best: measured before that is believed"
            trial = self._if_allowed(best.setting.but(num_workers=count), why)
            if trial is None or self._sure_to_lose(trial.setting):
                continue
            slower = trial.expected is not None and trial.expected.high <= best.speed
            if self.contradicted or not slower:
                return trial
        return None

    def trial_of(self, setting: LoaderSetting, why: str, expected: Expected | None = None) -> Trial:
        """Return a trial of a setting."""
        start = self.tried[0]
        arguments = setting.to_dict()
        changes = {
            name: value for name, value in arguments.items() if value != start.knobs.get(name)
        }
        return Trial(start.knobs | arguments, why, changes, expected)

    def is_tried(self, setting: LoaderSetting) -> bool:
        """Return whether a setting was run."""
        return any(trial.setting == setting for trial in self.tried)

    def may_run(self, setting: LoaderSetting) -> bool:
        """Return whether nothing speaks against it: memory, or a cheaper one that failed."""
        for trial in self.tried:
            has_failed = trial.error and not trial.rates
            asks_no_less = (
                setting.num_workers >= trial.setting.num_workers
                and setting.cost[1] >= trial.setting.cost[1]
            )
            if has_failed and asks_no_less:
                return False
        if why := self.refuse(setting, self.tried):
            self.refused[setting] = why
        return not why

    def expected(self, setting: LoaderSetting) -> Expected | None:
        """Predict a setting from the nearest run, and correct by how that run itself came out."""
        measured = [trial for trial in self.tried if trial.rates and trial.runs]
        nearest = min(measured, key=lambda trial: distance(trial.setting, setting))
        run = nearest.runs[-1]
        predicted = self.forecast(run, nearest.setting, setting)
        itself = self.forecast(run, nearest.setting, nearest.setting)
        if predicted is None or itself is None or not itself.value:
            return None
        return predicted.times(nearest.speed / itself.value)

    def _usual(self, workers: int) -> LoaderSetting:
        """Return the start with other workers, at PyTorch's own depth."""
        return self.tried[0].setting.but(num_workers=workers, prefetch_factor=PYTORCH_PREFETCH)

    def _if_allowed(self, setting: LoaderSetting, why: str) -> Trial | None:
        """Return the trial of a setting with its prediction; None where it may not run."""
        if setting not in self.settings or not self.may_run(setting):
            return None
        return self.trial_of(setting, why, self.expected(setting))

    def _core_spared(self) -> Trial | None:
        """Return fewer workers than cores: where all compute, the loop had better have one."""
        best = self.best
        counts = {setting.num_workers for setting in self.settings}
        fewer = max((count for count in counts if 0 < count < self.cores), default=0)
        if best.setting.num_workers < self.cores or not fewer:
            return None
        setting = best.setting.but(num_workers=fewer, prefetch_factor=PYTORCH_PREFETCH)
        if self.is_tried(setting) or not self.may_run(setting):
            return None
        start = self.tried[0]  # a run that the crowd held back would tell too little
        expected = self.forecast(start.runs[-1], start.setting, setting)
        if expected is None or (1 + REACH) * expected.value < best.speed:
            return None
        return self.trial_of(setting, "leaves the training loop a core", expected)

    def _coarse(self) -> Trial | None:
        """Return the next of 1, cores, 2 x cores ... workers, as long as more of them gain."""
        rates: dict[int, float] = {}
        for trial in self.tried:
            workers = trial.setting.num_workers
            rates[workers] = max(rates.get(workers, 0.0), trial.speed)
        best = rates.get(0, 0.0)
        for workers in sorted({1, self.cores, 2 * self.cores, 4 * self.cores}):
            if workers in rates:
                if workers >= 2 * self.cores and rates[workers] < (1 + TIE) * best:
                    return None  # more of them have brought nothing
                best = max(best, rates[workers])
                continue
            setting = self._usual(workers)
            is_useful = workers > 1 or max(rates) == 0
            if is_useful and not self._sure_to_lose(setting):
                if setting not in self.settings or not self.may_run(setting):
                    return None
                why = "a run contradicted its prediction: measure a coarse ladder"
                return self.trial_of(setting, why)
        return None

    def _sure_to_lose(self, setting: LoaderSetting) -> bool:
        """Whether fewer and more workers came out as predicted, and this is predicted slower."""
        as_predicted: dict[int, bool] = {}
        for trial in self.tried:
            workers = trial.setting.num_workers
            as_predicted[workers] = as_predicted.get(workers, True) and trial.came_as_predicted
        fewer = max((n for n in as_predicted if n < setting.num_workers), default=None)
        more = min((n for n in as_predicted if n > setting.num_workers), default=None)
        if fewer is None or more is None or not (as_predicted[fewer] and as_predicted[more]):
            return False
        expected = self.expected(setting)
        return expected is not None and expected.high < self.best.speed

    def _misses(self) -> int:
        """Return how many trials have brought nothing since the last that did."""
        misses = 0
        fastest = 0.0
        for trial in self.tried:
            misses = 0 if trial.speed > (1 + TIE) * fastest else misses + 1
            fastest = max(fastest, trial.speed)
        return misses

    def _predicted(self, and_cheaper: bool) -> Trial | None:
        """Return the trial that is predicted to be most worth a run."""
        misses = self._misses()
        if misses > PATIENCE:
            return None
        hopes = self._hopes()
        if not hopes:
            return None
        best = self.best
        needed = (1 + TIE + (misses + self.agreed) * CLOSE) * best.speed
        if max(hope.value for hope in hopes.values()) > needed:
            why = "the cheapest of those predicted fastest"
            return self._cheapest(self._as_good(hopes, needed), why, hopes)
        if not and_cheaper or (len(self.tried) > ENOUGH and not self.contradicted):
            return None
        reach = {s: min(hope.high, (1 + REACH) * hope.value) for s, hope in hopes.items()}
        furthest = max(reach.values())
        if not misses and furthest > (1 + CLOSE) * best.speed:
            found = [setting for setting, high in reach.items() if high == furthest]
            return self._cheapest(found, "may be faster: its range reaches higher", hopes)
        cheaper = [
            setting
            for setting, hope in hopes.items()
            if hope.value >= (1 - TIE / 2) * best.speed
            and setting.num_workers < best.setting.num_workers
        ]
        return self._cheapest(cheaper, "fewer workers, and predicted to be as fast", hopes)

    def _cheapest(
        self, settings: list[LoaderSetting], why: str, hopes: dict[LoaderSetting, Expected]
    ) -> Trial | None:
        if not settings:
            return None
        cheapest = min(settings, key=lambda setting: setting.cost)
        return self.trial_of(cheapest, why, hopes[cheapest])

    def _as_good(self, hopes: dict[LoaderSetting, Expected], needed: float) -> list[LoaderSetting]:
        """Return those predicted as fast as the fastest, by the rule of `recommend_workers`.

        At PyTorch's own prefetch_factor, as there, while more than `needed` samples/s are
        predicted.
        """
        usual = {setting: hope for setting, hope in hopes.items() if is_usual(setting)}
        if any(hope.value > needed for hope in usual.values()):
            hopes = usual
        top = max(hope.value for hope in hopes.values())
        return [s for s, hope in hopes.items() if hope.value >= (1 - AS_GOOD) * top]

    def _hopes(self) -> dict[LoaderSetting, Expected]:
        """Predict what was not tried: every number of workers, and how deep only for the best.

        A prediction takes tens of ms, so those that cannot come out near the top are left out.
        """
        failed = [trial.setting for trial in self.tried if trial.error]
        able = [setting for setting in self.settings if setting not in failed]
        allowed = [s for s in able if self.is_tried(s) or self.may_run(s)]
        usual = self._all_expected([setting for setting in allowed if is_usual(setting)])
        top = max((hope.value for hope in usual.values()), default=0.0)
        near = {
            (setting.num_workers, setting.batch_size)
            for setting, hope in usual.items()
            if hope.value >= NEAR * top
        }
        worth = [s for s in allowed if (s.num_workers, s.batch_size) in near]
        return self._all_expected([setting for setting in worth if not self.is_tried(setting)])

    def _all_expected(self, settings: list[LoaderSetting]) -> dict[LoaderSetting, Expected]:
        """Return the predictions that can be made."""
        found = {}
        for setting in settings:
            expected = self.expected(setting)
            if expected is not None:
                found[setting] = expected
        return found


def is_usual(setting: LoaderSetting) -> bool:
    """Return whether a setting has no workers or PyTorch's own depth."""
    return setting.prefetch_factor in (None, PYTORCH_PREFETCH)
