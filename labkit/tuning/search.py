"""The search: prediction says what is worth a run, and runs say what is true.

Where a run comes out as predicted, only one that may be clearly faster is worth another; where it
contradicts, more are made. A gain so small that it may be noise is measured again.

It only decides. `measure` runs a setting, `expect` predicts one from a run of another; both are
given to it, so that a test can give it others.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

from labkit.diagnosis.recommendation import TIE as AS_GOOD
from labkit.tuning.tuning import PYTORCH_PREFETCH, TIE, Setting, Trial, Tuning

MOST_TRIED = 4  # settings measured, the baseline included
AGREES = 0.10  # a run that comes out within this of its prediction: the model is right about it
ENOUGH = 2  # settings measured, none of which contradicts: none is tried then for its range alone
NOISE = 0.08  # a run repeated on two busy cores differs by so much (median of 60 x 10 runs: 7 %)
CLOSE = 0.05  # a gain that one run shows; a trial further below the best is over
RUNS_EACH = 3  # of the baseline and of the best, where they are that close
SURE = 0.10  # a gain over the baseline above this needs no second measurement of the baseline
REACH = 0.10  # a prediction's range is taken seriously up to this far above its value
NEAR = 0.85  # of the best prediction at PyTorch's own depth, for other depths to be predicted too
MORE = 2  # trials on top, where one has contradicted its prediction
NEIGHBOURS = 2  # of the best number of workers, measured before the search ends
PATIENCE = 1  # trials without a gain; the next has to be predicted a good deal faster

Expected = tuple[float, float, float]  # samples/s: value, low, high
Measured = tuple[float | None, str | None, Any]  # samples/s, or why there is no number; the run
COST = operator.attrgetter("cost")


class Search:
    """One search over `settings`, filling a Tuning as it goes."""

    def __init__(
        self,
        tuning: Tuning,
        settings: list[Setting],
        measure: Callable[[Setting, float | None], Measured],
        expect: Callable[[Any, Setting, Setting], Expected | None],
        refuse: Callable[[Setting, list[Trial]], str | None] = lambda setting, trials: None,
        variants: tuple[dict[str, Any], ...] = (),
        cores: int = 1,
    ):
        """Set up a search; nothing runs yet.

        `measure` gets a setting and the samples/s expected of it; `expect` predicts from (a run,
        its setting, another one); `refuse` says why a setting may not run; `variants` are changes
        that are tried on the winner, as {"pin_memory": True}; `cores` are the machine's.
        """
        self.tuning, self.settings = tuning, settings
        self.measure, self.expect, self.refuse = measure, expect, refuse
        self.variants, self.cores = variants, cores
        self.each: Callable[[], None] | None = None  # called when a trial has been run
        self.refused: dict[Setting, str] = {}

    def run(self) -> Tuning:
        """Search to the end; raises RuntimeError where the baseline itself cannot be measured."""
        tuning, begun = self.tuning, time.monotonic()
        try:
            baseline = self._run(Trial(tuning.start, "the starting point"))
            if baseline.rate is None:
                raise RuntimeError(f"The starting point cannot be measured: {baseline.error}")
            while len(tuning.tried) < MOST_TRIED + MORE * self.contradicted:
                found = self.next() or self._unseen()
                if found is None:
                    break
                self._run(found)
            for _ in range(NEIGHBOURS):
                if (beside := self._neighbour()) is not None:
                    self._run(beside)
            for change in self.variants:
                setting = tuning.winner.setting.but(**change)
                if not self._tried(setting):
                    what = ", ".join(f"{name}={value}" for name, value in change.items())
                    self._run(Trial(setting, f"the best so far with {what}"))
            tuning.chosen = self._not_slower(tuning.winner)
        except KeyboardInterrupt:
            tuning.interrupted = True
            raise
        finally:
            tuning.seconds, tuning.done = time.monotonic() - begun, True
        if self.refused:
            least = min(self.refused, key=COST)
            why = f"{len(self.refused)} settings; {least}: {self.refused[least]}"
            tuning.notes.append(f"Not tried: {why}.")
        if len(tuning.tried) == 1:
            why = "No other setting was predicted to be faster or as fast and cheaper."
            tuning.notes.append(why)
        return tuning

    def _tried(self, setting: Setting) -> bool:
        return any(trial.setting == setting for trial in self.tuning.tried)

    @property
    def contradicted(self) -> bool:
        """Whether a run came out beyond its predicted range: the model is wrong about this data."""
        return not all(map(came_as_predicted, self.tuning.tried))

    @property
    def agreed(self) -> bool:
        """Whether the last run came out as predicted: only a clear promise is worth another."""
        last = self.tuning.tried[-1]
        told = last.expected and last.rate and not self.contradicted
        return bool(told) and abs(last.rate / last.expected[0] - 1) <= AGREES

    def next(self, save: bool = True) -> Trial | None:
        """Return the trial most worth a run, or None; `save`: also what is as fast with fewer."""
        spared = self._core_spared() if save else None
        if not self.contradicted:
            return self._predicted(save) or spared
        # What the model is most often wrong about is what cores cost that are all taken
        return spared or self._predicted(save) or self._coarse()

    def _unseen(self) -> Trial | None:
        """Return as many workers as cores, where no worker has been measured and none is best.

        That none are best is then the prediction of a run in which nothing was handed over.
        """
        if any(trial.setting.num_workers for trial in self.tuning.tried):
            return None
        setting = self.tuning.start.but(
            num_workers=max(1, self.cores), prefetch_factor=PYTORCH_PREFETCH
        )
        if setting not in self.settings or not self.may_run(setting):
            return None
        why = "no workers are predicted to be best: measure some before that is believed"
        return Trial(setting, why, self.expected(setting))

    def _neighbour(self) -> Trial | None:
        """Return the next fewer or more workers than the best, where they may be better.

        Where all runs came as predicted, those predicted to be slower are left out.
        """
        best = self.tuning.winner
        own = best.setting.num_workers
        counts = {setting.num_workers for setting in self.settings}
        fewer = max((count for count in counts if 0 < count < own), default=own)
        more = min((count for count in counts if count > own), default=own)
        measured = {trial.setting.num_workers for trial in self.tuning.tried}
        for count in (fewer, more) if own else ():
            setting = best.setting.but(num_workers=count)
            if count in measured or setting not in self.settings or not self.may_run(setting):
                continue
            hope = self.expected(setting)
            worse = hope is not None and hope[2] <= best.rate and not self.contradicted
            if not worse and not self._sure_to_lose(setting):
                return Trial(setting, "beside the best: measured before that is believed", hope)
        return None

    def _core_spared(self) -> Trial | None:
        """Return fewer workers than cores: where all compute, the loop had better have one."""
        best = self.tuning.winner
        if best.setting.num_workers < self.cores:
            return None
        counts = {s.num_workers for s in self.settings if 0 < s.num_workers < self.cores}
        fewer = max(counts, default=0)
        setting = best.setting.but(num_workers=fewer, prefetch_factor=PYTORCH_PREFETCH)
        if not counts or self._tried(setting) or not self.may_run(setting):
            return None
        start = self.tuning.baseline  # a run that the crowd held back would tell too little
        hope = self.expect(start.runs[-1], start.setting, setting)
        reaches = hope and (1 + REACH) * hope[0] >= best.rate
        return Trial(setting, "leaves the training loop a core", hope) if reaches else None

    def _coarse(self) -> Trial | None:
        """Return the next of 1, cores, 2 x cores ... workers, as long as more of them gain."""
        rates: dict[int, float] = {}
        for trial in self.tuning.tried:
            workers = trial.setting.num_workers
            rates[workers] = max(rates.get(workers, 0.0), trial.rate or 0.0)
        best, start = rates.get(0, 0.0), self.tuning.start
        for workers in sorted({1, self.cores, 2 * self.cores, 4 * self.cores}):
            setting = start.but(num_workers=workers, prefetch_factor=PYTORCH_PREFETCH)
            if workers in rates:
                if workers >= 2 * self.cores and rates[workers] < (1 + TIE) * best:
                    return None  # more of them have brought nothing
                best = max(best, rates[workers])
            elif (workers > 1 or max(rates) == 0) and not self._sure_to_lose(setting):
                allowed = setting in self.settings and self.may_run(setting)
                why = "a run contradicted its prediction: measure a coarse ladder"
                return Trial(setting, why) if allowed else None
        return None

    def _sure_to_lose(self, setting: Setting) -> bool:
        """Whether fewer and more workers came out as predicted, and this is predicted slower."""
        told: dict[int, bool] = {}
        for trial in self.tuning.tried:
            workers = trial.setting.num_workers
            told[workers] = told.get(workers, True) and came_as_predicted(trial)
        fewer = max((n for n in told if n < setting.num_workers), default=None)
        more = min((n for n in told if n > setting.num_workers), default=None)
        between = fewer is not None and more is not None and told[fewer] and told[more]
        hope = self.expected(setting) if between else None
        return bool(hope) and hope[2] < self.tuning.winner.rate

    def _predicted(self, save: bool) -> Trial | None:
        """Return the trial that is predicted to be most worth a run."""
        best, fastest, missed = self.tuning.winner, 0.0, 0
        for trial in self.tuning.tried:  # how many have brought nothing since the last that did
            missed = 0 if (trial.rate or 0) > (1 + TIE) * fastest else missed + 1
            fastest = max(fastest, trial.rate or 0)
        if best is None or missed > PATIENCE or not (hopes := self._hopes()):
            return None
        top = max(value for value, _, _ in hopes.values())
        reach = {s: min(high, (1 + REACH) * value) for s, (value, _, high) in hopes.items()}
        furthest = max(reach.values())
        gain = (1 + TIE + (missed + self.agreed) * CLOSE) * best.rate
        if top > gain:
            found = self._as_good(hopes, gain)
            why = "the cheapest of those predicted fastest"
        elif not save or (len(self.tuning.tried) > ENOUGH and not self.contradicted):
            return None
        elif not missed and furthest > (1 + CLOSE) * best.rate:
            found = [s for s, high in reach.items() if high == furthest]
            why = "may be faster: its range reaches higher"
        else:
            fast = [s for s, hope in hopes.items() if hope[0] >= (1 - TIE / 2) * best.rate]
            found = [s for s in fast if s.num_workers < best.setting.num_workers]
            why = "fewer workers, and predicted to be as fast"
        least = min(found, key=COST, default=None)
        return least and Trial(least, why, hopes[least])

    def _as_good(self, hopes: dict[Setting, Expected], gain: float) -> list[Setting]:
        """Return those predicted as fast as the fastest, by the rule of `recommend_workers`.

        At PyTorch's own prefetch_factor, as there, while more than `gain` samples/s are predicted.
        """
        depths = (None, PYTORCH_PREFETCH)
        usual = {s: hope for s, hope in hopes.items() if s.prefetch_factor in depths}
        if max((value for value, _, _ in usual.values()), default=0.0) > gain:
            hopes = usual
        top = max(value for value, _, _ in hopes.values())
        return [setting for setting, hope in hopes.items() if hope[0] >= (1 - AS_GOOD) * top]

    def _hopes(self) -> dict[Setting, Expected]:
        """Predict what has not been tried: every number of workers, and how deep only for the best.

        A prediction takes tens of ms, so those that cannot come out near the top are left out.
        """
        failed = [trial.setting for trial in self.tuning.tried if trial.error]
        able = [s for s in self.settings if s not in failed]
        open_to = [s for s in able if self._tried(s) or self.may_run(s)]
        usual = [s for s in open_to if s.prefetch_factor in (None, PYTORCH_PREFETCH)]
        known = {s: found for s in usual if (found := self.expected(s))}
        top = max((value for value, _, _ in known.values()), default=0.0)
        near = {(s.num_workers, s.batch_size) for s, hope in known.items() if hope[0] >= NEAR * top}
        worth = [s for s in open_to if (s.num_workers, s.batch_size) in near]
        return {s: found for s in worth if not self._tried(s) and (found := self.expected(s))}

    def expected(self, setting: Setting) -> Expected | None:
        """Predict `setting` from the nearest run, and correct by how that run itself came out."""
        measured = [trial for trial in self.tuning.tried if trial.rate and trial.runs]
        near = min(measured, key=lambda trial: distance(trial.setting, setting))
        found = self.expect(near.runs[-1], near.setting, setting)
        itself = self.expect(near.runs[-1], near.setting, near.setting)
        if found is None or itself is None or not itself[0]:
            return None
        return tuple(part * near.rate / itself[0] for part in found)

    def may_run(self, setting: Setting) -> bool:
        """Return whether nothing speaks against it: memory, or a cheaper one that failed."""
        for trial in self.tuning.tried:
            failed = trial.error and not trial.rates
            (workers, waiting, _), (least, fewest, _) = setting.cost, trial.setting.cost
            if failed and workers >= least and waiting >= fewest:
                return False  # it asks for no less
        if why := self.refuse(setting, self.tuning.tried):
            self.refused[setting] = why
        return not why

    def _run(self, trial: Trial) -> Trial:
        """Measure a trial once (more)."""
        if trial not in self.tuning.tried:
            self.tuning.tried.append(trial)
        self.tuning.latest = trial
        hoped = trial.rate or (trial.expected or (self.tuning.baseline.rate,))[0]
        rate, trial.error, run = self.measure(trial.setting, hoped)
        if rate:
            trial.rates.append(rate)
            trial.runs.append(run)
        if self.each is not None:
            self.each()
        return trial

    def _not_slower(self, best: Trial) -> Trial:
        """Return `best`, or the baseline where it is not slower after all."""
        baseline = self.tuning.baseline
        saves = self.agreed and COST(best.setting) < COST(baseline.setting)
        if best is baseline or best.rate >= (1 if saves else 1 + SURE) * baseline.rate:
            return best
        gain, dearer = best.rate / baseline.rate - 1, COST(best.setting) > COST(baseline.setting)
        uneven = max(trial.runs[-1].spread or 0.0 for trial in (best, baseline))
        if dearer and gain <= min(CLOSE, uneven):
            return baseline  # more runs would only tell how small it is
        while not best.error:  # the closer the two are, the more often they are measured
            close = abs(best.rate / baseline.rate - 1) <= CLOSE
            fewer = min(baseline, best, key=lambda trial: len(trial.rates))
            if len(fewer.rates) >= (RUNS_EACH if close else 2):
                break
            self._run(fewer)
        return best if not best.error and best.rate >= baseline.rate else baseline


def came_as_predicted(trial: Trial) -> bool:
    """Whether a run came out in its predicted range, give or take the noise of a run.

    True of one that nothing was predicted for.
    """
    if not (trial.expected and trial.rate):
        return True
    low, high = trial.expected[1:]
    return (1 - NOISE) * low <= trial.rate <= (1 + NOISE) * high


def distance(one: Setting, other: Setting) -> float:
    """Return how far two settings are apart, for choosing which run predicts which."""
    workers = abs(math.log2(1 + one.num_workers) - math.log2(1 + other.num_workers))
    depth = abs(math.log2(one.prefetch_factor or 1) - math.log2(other.prefetch_factor or 1))
    return workers + 0.3 * depth + abs(math.log2(one.batch_size / other.batch_size))
