"""The searches, for a loader and the autopilot: one run more, until none is worth its time."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from statistics import median

from labkit.diagnosis.findings import Diagnosis
from labkit.knobs import Setting
from labkit.prediction.prediction import LEAST_MAX_WORKERS, WORKER_COUNTS
from labkit.results.hardware import Machine
from labkit.spec import KNOBS, PYTORCH_PREFETCH, knobs_with
from labkit.tuning.script_bench import ScriptBench
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import Outcome, Trial, TrialBench, cost, of_loader

SURE = 0.10  # a gain above this needs no second measurement
WORTH = 0.03  # what a change has to gain when it is run in turn with the start
WORTH_TRYING = 0.03  # share of the time that a loss costs, for `lk.improve` to try its remedies
ALWAYS = 4  # workers are tried in any case: two may lose where four gain
DEEP = 4  # times as long a queue
READY_GAIN = 1.10  # with ready batches; where they gain less, the loader is not the limit
PAIRS = 3  # of runs in turn, with the change and without
NEIGHBOURS = 0.10  # share of the cores by which the two runs of a pair may differ in others' use
REPEATS = 2  # of pairs that differ more
USUAL_RUNS = 18  # of a whole search over a script
MOST_TRIALS = 12  # of the autopilot
TRAINING = set(knobs_with("retrains"))


class Search:
    """A search for the cheapest loader that is as fast as the fastest. It decides, the bench runs.

    No, two and four workers are measured, doubled as long as that gains; then what lies beside the
    best, a longer queue, and pinned memory on a card. A gain that may be noise is measured again,
    in turn with the start.
    """

    def __init__(
        self,
        found: Tuning,
        bench: TrialBench | ScriptBench,
        here: Machine,
        max_workers: int | None = None,
    ):
        """Fill `found`; nothing runs yet.

        Without `max_workers`, up to twice as many workers as there are cores `here` are tried.
        """
        most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))
        if max_workers is not None:
            most = KNOBS["num_workers"].check(max_workers)
        found.machine = here.line
        self.found = found
        self.bench = bench
        self.counts = [count for count in WORKER_COUNTS if count <= most]
        self.on_card = here.device.startswith("cuda")
        self.each: Callable[[Trial], object] = lambda _: None  # called when a trial has been run

    @property
    def start(self) -> Trial:
        """The trial of the settings as they are."""
        return self.found.tried[0]

    @property
    def best(self) -> Trial:
        """The best trial so far."""
        return self.found.winner or self.start

    def run(self) -> Tuning:
        """Search to the end; raises RuntimeError where the start itself cannot be measured."""
        found = self.found
        begun_s = time.monotonic()
        try:
            if found.tried:
                self.each(self.start)
            else:
                self.measure(Trial(dict(found.start)))
            if not self.start.rates:
                raise RuntimeError(f"The starting point cannot be measured: {self.start.error}")
            for trial in self.trials():
                self.measure(trial)
            found.chosen = self.confirm()
        except KeyboardInterrupt:
            found.interrupted = True
            raise
        finally:
            others = max((each.others for each in found.outcomes), default=0.0)
            if others > NEIGHBOURS:
                worth = "only the pairs count" if found.pairs else "these numbers are doubtful"
                found.notes.append(f"Other programs used up to {others:.0%} of the cores: {worth}.")
            found.seconds = time.monotonic() - begun_s
        return found

    def measure(self, trial: Trial, whole: bool = False) -> Outcome:
        """Run a trial once (more)."""
        rate = self.best.rate if self.found.tried else None
        if trial not in self.found.tried:
            self.found.tried.append(trial)
        outcome = self.bench.measure(trial.knobs, rate, whole)
        trial.outcomes.append(outcome)
        self.each(trial)
        return outcome

    # -- what to try; each has been measured before the next is asked for --------------------------

    def trials(self) -> Iterator[Trial]:
        """Yield one change of the loader after the other."""
        yield from self.worker_counts()
        yield from self.around_the_best()

    def worker_counts(self) -> Iterator[Trial]:
        """Yield no workers, 2 and 4, doubled as long as that pays."""
        yield from self.with_workers(0)
        count = 2
        while count <= self.counts[-1] and (count <= ALWAYS or self.best.workers >= count // 2):
            yield from self.with_workers(count)
            count *= 2

    def around_the_best(self) -> Iterator[Trial]:
        """Yield the next numbers of workers until none is better, a longer queue, pinned memory."""
        best = None
        while best is not self.best:
            best = self.best
            place = bisect_left(self.counts, best.workers)
            for count in self.counts[max(0, place - 1) : place + 2]:
                yield from self.with_workers(count)
        if self.best.workers:
            yield from self.change(prefetch_factor=DEEP * self.best.knobs["prefetch_factor"])
        if self.on_card:
            yield from self.change(pin_memory=True)

    def with_workers(self, count: int) -> Iterator[Trial]:
        """Yield the best so far with other workers, at PyTorch's own prefetch_factor.

        Workers are kept from one epoch to the next where epochs are timed, else their start would
        speak against many of them.
        """
        workers = {"num_workers": count, "prefetch_factor": PYTORCH_PREFETCH}
        if self.bench.epochs:
            workers["persistent_workers"] = True
        yield from self.change(**of_loader(self.found.start | workers))

    def change(self, before: Trial | None = None, **more: Setting) -> Iterator[Trial]:
        """Yield a trial with one more change: of the best so far, if no other is given.

        Not where it has been tried, or where a cheaper one failed.
        """
        trial = Trial.changing(self.found.start, (before or self.best).knobs | more)
        for each in self.found.tried:
            if each.knobs == trial.knobs or (each.error and cost(each.knobs) <= cost(trial.knobs)):
                return
        yield trial

    # -- what is believed --------------------------------------------------------------------------

    def confirm(self) -> Trial:
        """Return the best, or the start where a change of it does not pay."""
        best = self.best  # before it is run in turn
        if best is self.start:
            self.found.stopped = self.found.stopped or "nothing that was tried is faster"
        elif self.pays(best):
            return best
        else:
            self.found.stopped = "nothing gained beyond the noise when it was run in turn"
        return self.start

    def pays(self, best: Trial) -> bool:
        """Return whether a trial is faster than the start, or as fast and cheaper."""
        if best.rate >= (1 + SURE) * self.start.rate or self.gains_in_turn(best):
            return True
        is_cheaper = cost(best.knobs) < cost(self.start.knobs)
        return is_cheaper and median(self.found.pairs or [0.0]) >= 1

    def gains_in_turn(self, trial: Trial) -> bool:
        """Return whether a trial is faster than the start in each pair of runs in turn.

        A pair with other neighbours is repeated; there are none where a run fails.
        """
        gains: list[float] = []
        repeats = REPEATS
        while len(gains) < PAIRS:
            changed = self.measure(trial, whole=True)
            plain = self.measure(self.start, whole=True)
            if not changed.rate or not plain.rate:
                return False
            if repeats and abs(changed.others - plain.others) > NEIGHBOURS:
                repeats -= 1
            else:
                gains.append(changed.rate / plain.rate)
        self.found.pairs = gains
        return min(gains) > 1 and median(gains) >= 1 + WORTH


class ScriptSearch(Search):
    """A search over runs of a script, of which one as it is has been made.

    Batches that are ready tell first whether the loader is the limit; the threads of its workers
    are tried too. Every gain is measured again, in turn with the start.
    """

    def __init__(self, found: Tuning, bench: ScriptBench, here: Machine, budget_s: float):
        """Fill `found`; no change is tried for which less than `budget_s` from now is left."""
        super().__init__(found, bench, here)
        self.until_s = time.monotonic() + budget_s

    def trials(self) -> Iterator[Trial]:
        """Yield ready batches, then changes while there is time to run them in turn."""
        found, start = self.found, self.start
        ready = Trial.changing(start.knobs, {"ready": True})
        yield ready
        found.ready_batches = ready.rate / start.rate or None
        if 0 < ready.rate < READY_GAIN * start.rate:
            found.stopped = "the loader is not what holds this loop back"
            found.limit = found.verdict.bottleneck if found.verdict else "unsure"
            return
        for trial in self.changes():
            run_s = median(each.seconds for each in found.outcomes)
            if time.monotonic() + 2 * PAIRS * run_s > self.until_s:
                found.stopped = "no time to try a change" if found.tried[-1] is ready else ""
                found.notes.append(
                    "The budget is spent: what would have come next was not tried. One run of this "
                    f"script takes {run_s:.0f} s: --budget {USUAL_RUNS * run_s:.0f} is enough for "
                    "most."
                )
                return
            yield trial

    def changes(self) -> Iterator[Trial]:
        """Yield one change of the loader, or of its workers' threads, after the other."""
        if self.start.workers:
            yield from self.change(library_threads=1)
        yield from self.worker_counts()
        # Threads of the model and of every worker take each other's cores: workers may seem to
        # lose that are best with one thread each
        working = [each for each in self.found.tried if each.workers and not each.has_ready_batches]
        fastest = max(working, key=lambda trial: trial.rate, default=self.start)
        yield from self.change(fastest, library_threads=1)
        yield from self.around_the_best()

    def pays(self, best: Trial) -> bool:
        """Return whether a trial is faster: no single run is believed."""
        return self.gains_in_turn(best)


class Improver(Search):
    """Climbs from the start, one change after the other; each that gains by far is kept."""

    def trials(self) -> Iterator[Trial]:
        """Yield what is advised until nothing is worth another run, which `stopped` explains."""
        found = self.found
        found.chosen = self.start
        while not found.stopped:
            run = self.best.outcomes[-1].run
            assert run is not None
            found.verdict = run.diagnose()
            trial = next(self.advice(found.verdict), None)
            if trial is None:
                found.stopped = f"on top is {found.verdict.headline}, and nothing is left to try"
            elif len(found.tried) > MOST_TRIALS:
                found.stopped = f"{MOST_TRIALS} changes were tried"
            else:
                yield trial
                if trial.rate >= (1 + SURE) * self.best.rate:
                    found.chosen = trial

    def advice(self, verdict: Diagnosis) -> Iterator[Trial]:
        """Yield what the verdict advises, costliest loss first; what changes the training never."""
        for finding in verdict.findings:
            for remedy in finding.remedies if finding.lost_share > WORTH_TRYING else ():
                changes = dict(remedy.changes)  # empty for a remedy in words
                knobs = self.best.knobs | changes
                trial = Trial.changing(self.best.knobs, knobs | of_loader(knobs))
                is_new = all(each.knobs != trial.knobs for each in self.found.tried)
                if is_new and not changes.keys() & TRAINING:
                    yield trial

    def confirm(self) -> Trial:
        """Return what was kept: it gained too much for noise."""
        return self.best
